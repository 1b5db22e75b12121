/* Two or more processes that hold transports as workers do: one receiver, senders that write into its memory. The
 * parent says what is to be timed and never uses UCX itself; all fork from it.
 *
 * Memory: region 0 of each end. Senders fill theirs with words that no other place has, so that the receiver can check
 * what arrived (pd_check).
 */
#ifndef GY_BENCH_PD_ENDS_H
#define GY_BENCH_PD_ENDS_H

#include "pd/xfer.h"

enum { PD_MAX_SENDER = 8, PD_MAX_JOB = 256, PD_MAX_NS = 4096, PD_MAX_STREAM = 256 };

typedef struct pd_end { /* in a child */
    gy_xfer *x;
    gy_xfer_peer *peer;      /* of a sender */
    unsigned char *mem;      /* region 0 */
    size_t bytes, dst_bytes; /* of it; of the receiver's */
    /* Of a sender, copy_bytes each, for memcpy: two mappings of 4 KiB pages, as shared memory has, two of huge ones. */
    unsigned char *plain[2], *huge[2];
    size_t copy_bytes;
    gy_xfer_limits limits;
    int fd;     /* to the other end, as a child has it */
    int n_done; /* ops */
    gy_status status;
    int64_t note_ns; /* receiver: when the last note came */
    uint64_t n_note;
    int is_sleepy; /* receiver: sleeps in gy_xfer_wait instead of polling */
} pd_end;

/* Runs in a sender; *job is its own copy. What it returns goes to the parent; err then says why. */
typedef gy_status (*pd_job)(pd_end *e, const void *job, int64_t *ns, int32_t *n_ns, gy_err *err);

typedef struct pd_ends pd_ends;
typedef struct pd_ends_opts {
    int across_hosts; /* 1: active messages over the device lo */
    size_t src_bytes, dst_bytes, copy_bytes;
    int n_sender;
    gy_xfer_limits limits[PD_MAX_SENDER];
} pd_ends_opts;

gy_status pd_ends_open(const pd_ends_opts *o, gy_err *err, pd_ends **out);
void pd_ends_close(pd_ends *p); /* accepts NULL; waits for all processes */
const char *pd_ends_lanes(const pd_ends *p);
/* Waits for the job's end. ns [PD_MAX_NS]: the times that it took. */
gy_status pd_ends_do(pd_ends *p, int sender, pd_job job, const void *arg, size_t n_arg, gy_err *err, int64_t *ns,
                     int32_t *n_ns);

/* ---- for jobs ---- */
/* One op, until its remote completion is known here; it carries a note. */
gy_status pd_put(pd_end *e, const gy_xfer_desc *desc, int32_t n_desc, gy_err *err);
/* n ops (up to PD_MAX_STREAM) of one copy each, from at on, as many at once as the budget and a window take. */
gy_status pd_stream(pd_end *e, size_t at, size_t bytes, int32_t n, gy_err *err);
gy_status pd_forget(pd_end *e, gy_err *err); /* the receiver's memory is zeroed; its pages exist after it */
gy_status pd_check(pd_end *e, size_t bytes, gy_err *err); /* its first bytes are the sender's */
gy_status pd_set_sleepy(pd_end *e, int is_sleepy, gy_err *err);
gy_status pd_last_note(pd_end *e, gy_err *err, int64_t *at_ns, uint64_t *n_note);

/* Processor time of this thread: of what a sender does by stores alone, what a busy machine does not stretch. */
int64_t pd_cpu_ns(void);

/* Of n times, which are sorted by it; q in 0..1. */
double pd_quantile_us(int64_t *ns, int32_t n, double q);

#endif
