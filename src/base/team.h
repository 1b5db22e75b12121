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

/* AUTO: where there are several NUMA nodes, so that members stay beside the memory that they touched first. */
typedef enum gy_pin { GY_PIN_AUTO, GY_PIN_ON, GY_PIN_OFF } gy_pin;

/* n_member 0 = gy_cpu_count_physical(). Members are bound to cores in order of nodes: there is one team, whose members
 * of a node are neighbours, so that static shares keep to their node. A team larger than the cores is never bound. */
gy_status gy_team_create(int n_member, gy_pin pin, gy_team **out);
void gy_team_destroy(gy_team *t); /* accepts NULL */
int gy_team_size(const gy_team *t);
void gy_team_run(gy_team *t, gy_team_fn fn, void *arg); /* returns when all members have returned from fn */

/* The half-open share [*lo, *hi) of member among n items in units of `grain` (the last unit may be short). Pure. */
void gy_team_share(int64_t n, int64_t grain, int member, int n_member, int64_t *lo, int64_t *hi);

#endif
