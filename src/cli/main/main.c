/* Nothing but the entry: tests link the library gy_cli and call gy_cli_main themselves. */
#include "cli/cli.h"

int main(int argc, char **argv) {
    return gy_cli_main(argc, argv);
}
