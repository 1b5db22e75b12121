/* Values of the options of `gyre serve` that are about its life: TLS, deadlines, logs; a member of gy_args
 * (cli_args.h). The rows are in cli_serve_life.c.
 */
#ifndef GY_CLI_CLI_SERVE_OPTS_H
#define GY_CLI_CLI_SERVE_OPTS_H

typedef struct gy_serve_opts {
    const char *tls_cert, *tls_key;           /* NULL: not given */
    double idle_s, header_s, body_s, write_s; /* 0: not given */
    double request_s;                         /* 0: none */
    const char *access_file, *log_file;       /* NULL: not given */
} gy_serve_opts;

#endif
