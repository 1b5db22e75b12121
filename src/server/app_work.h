/* A lane: one thread that does jobs off the loop, one after another, in the order in which they were pushed.
 *
 * The loop pushes, a job's run does everything that takes time, and the loop takes the job back; between the two the
 * job and all it points to belong to the lane. A lane knows nothing of requests, sockets or the engine.
 *
 * Bounds. What waits is bounded in jobs and in the bytes that their owner says they hold; beyond either push says
 * GY_AGAIN and the owner refuses its request. A job larger than all of max_bytes is taken when nothing else is there.
 *
 * Life of a job:  push --> waits --> run, on the lane's thread --> on_done --> take
 * A job that says is_last is never given back: run is the end of it (it frees). It is always taken, counts in no bound,
 * and is run by close if nobody came to it.
 */
#ifndef GY_SERVER_APP_WORK_H
#define GY_SERVER_APP_WORK_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gy_app_lane gy_app_lane;
typedef struct gy_app_job gy_app_job;

struct gy_app_job { /* part of its owner's struct */
    void (*run)(gy_app_job *j, void *worker);
    size_t bytes; /* that it holds while it waits or runs */
    int is_last;
    gy_app_job *next; /* the lane's */
};

typedef struct gy_app_lane_opts { /* name is copied by nobody: static */
    const char *name;             /* of the thread, at most 15 bytes */
    int nice;                     /* added to the thread's niceness; 0..19 */
    size_t max_jobs, max_bytes;   /* waiting and running */
    void (*on_done)(void *user);  /* on the lane's thread: something can be taken */
    void *user, *worker;          /* of on_done; given to each run */
} gy_app_lane_opts;

typedef struct gy_app_lane_stats {
    size_t n_job, n_bytes; /* waiting and running */
    uint64_t n_done, n_full;
    int64_t busy_ns; /* inside run */
} gy_app_lane_stats;

gy_status gy_app_lane_open(const gy_app_lane_opts *o, gy_err *err, gy_app_lane **out);
/* Waits for the job that runs. Those that wait or were not taken are forgotten: they are their owner's again. Accepts
 * NULL. */
void gy_app_lane_close(gy_app_lane *l);

/* The owner's thread. */
gy_status gy_app_lane_push(gy_app_lane *l, gy_app_job *j); /* GY_AGAIN: full, nothing happened */
gy_app_job *gy_app_lane_take(gy_app_lane *l);              /* the next one that was done; NULL: none */
void gy_app_lane_get_stats(gy_app_lane *l, gy_app_lane_stats *out);

#endif
