/* stdout with memory for failure, and the messages on stderr. A pipe whose reader went away and a full disk show up
 * here, once, whichever command was writing: stdio's own error flag is the memory.
 */
#include "cli/cli.h"
#include "cli/cli_args.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int gy_cli_fail(const gy_err *err) {
    fprintf(stderr, "gyre: %s\n", err->msg[0] ? err->msg : gy_status_name(err->status));
    return err->status == GY_E_ARG || err->status == GY_E_LIMIT ? GY_CLI_USAGE : GY_CLI_FAILED;
}

void gy_cli_name_flag(gy_err *err) {
    size_t n = strspn(err->msg, "abcdefghijklmnopqrstuvwxyz_");
    if (!n || err->msg[n] != ':') return;
    memmove(err->msg + 2, err->msg, sizeof err->msg - 3);
    err->msg[sizeof err->msg - 1] = '\0';
    memcpy(err->msg, "--", 2);
    for (size_t i = 2; i < n + 2; i++)
        if (err->msg[i] == '_') err->msg[i] = '-';
}

void gy_cli_note(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fputs("gyre: note: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

void gy_cli_put(const char *s, size_t len) {
    if (!ferror(stdout)) fwrite(s, 1, len, stdout);
}

void gy_cli_puts(const char *z) {
    gy_cli_put(z, strlen(z));
}

int gy_cli_flush(void) {
    return ferror(stdout) || fflush(stdout) ? -1 : 0;
}

int gy_cli_put_str(gy_str *s) {
    if (s->failed) return -1;
    gy_cli_put(gy_str_z(s), s->len);
    gy_str_clear(s);
    return gy_cli_flush();
}

/* The reader of the pipe went away: what it wanted it has got, and a message would only be noise behind `| head`. */
static int reader_left(void) {
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

int gy_cli_finish(int rc) {
    errno = 0;
    if (gy_cli_flush() == 0) return rc;
    int why = errno;
    if (!reader_left())
        fprintf(stderr, "gyre: standard output: cannot write all of it%s%s\n", why ? ": " : "",
                why ? strerrordesc_np(why) : "");
    return GY_CLI_FAILED;
}
