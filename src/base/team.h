/* The compute pool: a team of threads that run one function together (fork-join). Members spin some tens of
 * microseconds for the next task, then sleep on a futex; the caller is member 0. Work is split statically, so which
 * member computes what never decides a result. No nesting. One caller thread at a time.
 * Engine lifetime. Measured alternative: libgomp's region costs 1 us where this costs 0.2 us.
 */
#ifndef GY_BASE_TEAM_H
#define GY_BASE_TEAM_H

#include "base/status.h"

#include <stdint.h>

typedef struct gy_team gy_team;
typedef void (*gy_team_fn)(void *arg, int member, int n_member);

/* n_member 0 = one per physical core that this process may use. pin: bind members to cores. */
gy_status gy_team_create(int n_member, int pin, gy_team **out);
void gy_team_destroy(gy_team *t); /* accepts NULL */
int gy_team_size(const gy_team *t);
void gy_team_run(gy_team *t, gy_team_fn fn, void *arg); /* returns when all members have returned from fn */

/* The half-open share [*lo, *hi) of member among n items in units of `grain` (the last unit may be short). Pure. */
void gy_team_share(int64_t n, int64_t grain, int member, int n_member, int64_t *lo, int64_t *hi);

#endif
