/* The same work on one engine, two replicas, 1P1D and two hybrids: gyre bench engine does it. */
#include "pd_parts.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ARGS = 40 };

static gy_status run(const pd_bench *b, const char *const *more, gy_err *err) {
    const char *argv[MAX_ARGS] = {"gyre", "bench", "engine"};
    const char *dir;
    int n = 3, end;
    GY_TRY(pd_checkpoint(b, "mini-ouro", err, &dir));
    argv[n++] = dir;
    for (; *more; more++) argv[n++] = *more;
    if (b->json) {
        argv[n++] = "--json";
        argv[n++] = "-";
    }
    argv[n] = NULL;
    fflush(stdout);
    const pid_t pid = fork();
    if (!pid) {
        execv(b->gyre, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    if (pid < 0) return gy_err_set(err, GY_E_IO, "no process: %s", strerrordesc_np(errno));
    while (waitpid(pid, &end, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(end) && !WEXITSTATUS(end)) return GY_OK;
    return gy_err_set(err, GY_E_PEER, "%s bench engine failed", b->gyre);
}

gy_status pd_layouts(const pd_bench *b, gy_err *err) {
    static const char *const poisson[] = {"--layouts",  "engine,2r,1p1d,2h",
                                          "--workload", "poisson",
                                          "--rate",     "2.5",
                                          "--requests", "10",
                                          "--in",       "32:192",
                                          "--out",      "16:32",
                                          "--max-seqs", "10",
                                          "--repeat",   "3",
                                          NULL};
    static const char *const burst[] = {
        "--layouts", "engine,2r,1p1d,2h", "--workload", "burst", "--concurrency", "8", "--in", "32:192", "--out",
        "16:32",     "--repeat",          "3",          NULL};
    if (!b->json) printf("\n");
    GY_TRY(run(b, poisson, err));
    if (!b->json) printf("\n");
    GY_TRY(run(b, burst, err));
    if (!b->json)
        printf("\n  Two cores show what a hand-off costs and what decoding gains when no prompt is in its way. They do "
               "not "
               "show what\n  more cores or cards of their own would bring to P and D: here each has half of what one "
               "engine "
               "has, and while\n  there are only prompts, or only outputs, half of the machine waits.\n");
    return GY_OK;
}
