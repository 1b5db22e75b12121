/* Starts processes that end with this one. PR_SET_PDEATHSIG acts when the *thread* that forked ends, so a thread that
 * lives as long as the spawner does all forks. The environment of a child is PATH, HOME, LANG, LD_LIBRARY_PATH,
 * CUDA_VISIBLE_DEVICES and UCX's error mode and log level; its standard input is empty, its standard output is our
 * standard error, descriptor 3 is what it was given, 4 too if there is one, and nothing else is open. It leads a
 * process group: what a terminal sends to ours does not reach it, not even between its fork and that.
 */
#ifndef GY_PD_SPAWN_H
#define GY_PD_SPAWN_H

#include "base/status.h"

typedef struct gy_spawner gy_spawner;

gy_status gy_spawner_create(const char *program, gy_err *err, gy_spawner **out); /* path; copied */
void gy_spawner_destroy(gy_spawner *s); /* accepts NULL; children that are left are killed by the system */
/* argv is borrowed for the call; the descriptors stay the caller's, fd[1] may be -1. Waits until the program runs (or
 * cannot be run: GY_E_IO). */
gy_status gy_spawner_start(gy_spawner *s, const char *const *argv, const int fd[2], gy_err *err, int *pid_out,
                           int *pidfd_out);

typedef struct gy_child_end {
    int known;  /* 0: somebody else took the exit status */
    int signal; /* that killed it, else 0 */
    int code;   /* exit code */
} gy_child_end;
/* 1 when the process is gone and reaped; never waits. Behind it pidfd is of no use but to be closed. */
int gy_child_reap(int pidfd, gy_child_end *out);
void gy_child_signal(int pidfd, int signo);

#endif
