/* The program `gyre`: the only function that main() calls. Everything else of src/cli is inside.
 * Exit codes: 0 done; 1 it failed; 2 what was asked for is wrong or impossible (usage).
 */
#ifndef GY_CLI_CLI_H
#define GY_CLI_CLI_H

enum { GY_CLI_OK = 0, GY_CLI_FAILED = 1, GY_CLI_USAGE = 2 };

int gy_cli_main(int argc, char **argv);

#endif
