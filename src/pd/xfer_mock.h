/* A network that is made up: everything that a real one may do, in an order drawn from a seed, on a clock that only
 * moves when the test says so. All its ends belong to one thread.
 *
 * An op's copies are carried out one by one at random moments between post and completion; the note follows the last of
 * them; the writer hears of the completion before or after the note arrives. Ops overtake each other. A note may be
 * lost on the way and sent again later (several times), or arrive twice. A killed end neither progresses nor hears
 * anything from then on; what it had under way stops at whatever byte it had come to, but copies into it go on
 * "succeeding", as they do into the shared memory of a dead process. A writer that is cut off from whoever directs it
 * but lives is an end that nobody kills: what it has under way arrives, unless the receiver forbids it.
 */
#ifndef GY_PD_XFER_MOCK_H
#define GY_PD_XFER_MOCK_H

#include "pd/xfer.h"

typedef struct gy_mock_net gy_mock_net;

typedef struct gy_mock_opts {
    uint64_t seed;
    int64_t latency_ns, jitter_ns; /* of each stage of an op: fixed part, and up to so much more */
    double p_twice, p_lost;        /* per note: arrives twice; is lost and sent again after ten latencies */
    int n_forbid_again;            /* so many times gy_xfer_forbid says GY_AGAIN, and bytes still arrive */
} gy_mock_opts;

gy_status gy_mock_net_create(const gy_mock_opts *o, gy_mock_net **out);
void gy_mock_net_destroy(gy_mock_net *n); /* accepts NULL; after its ends are closed */

/* Carries out the next event; 0: there is none. The clock jumps to it. Callbacks run in the ends' gy_xfer_poll. */
int gy_mock_net_step(gy_mock_net *n);
int64_t gy_mock_net_now(const gy_mock_net *n);
int gy_mock_net_n_event(const gy_mock_net *n);
int64_t gy_mock_net_n_kept_out(const gy_mock_net *n); /* copies that came after their writer was forbidden */
void gy_mock_net_kill(gy_mock_net *n, gy_xfer *x);
/* All connections of x to others are lost: its ops fail, nothing can be posted to these peers any more, and what was on
 * its way arrives all the same. */
void gy_mock_net_break(gy_mock_net *n, gy_xfer *x);
/* From now on no connection can be made, or again. */
void gy_mock_net_part(gy_mock_net *n, int is_parted);

#endif
