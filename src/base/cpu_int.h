/* What base's own files share about processors: which cores a team may have, and in which order. Not for other parts.
 */
#ifndef GY_BASE_CPU_INT_H
#define GY_BASE_CPU_INT_H

enum { GY_CORES_MAX = 1024 };

/* Physical cores on which this process may compute. */
typedef struct gy_cores {
    int n;                  /* 1 .. GY_CORES_MAX */
    int n_node;             /* NUMA nodes that they belong to, >= 1 */
    int n_logical;          /* logical CPUs that are allowed, however many of them share a core */
    int quota;              /* whole CPUs that control groups grant at a time, >= 1; INT_MAX: no limit */
    int cpu[GY_CORES_MAX];  /* [n] of each the lowest logical CPU that is allowed; node by node, ascending in each */
    int node[GY_CORES_MAX]; /* [n] */
} gy_cores;

/* /proc and /sys are looked for under root ("" = the real ones). allowed: a list as sysfs writes them, "0-3,8"; NULL:
 * what the scheduler lets this thread have, which is what affinity and cpusets left. Without sysfs each logical CPU is
 * a core, all of one node. */
void gy_cores_find(const char *root, const char *allowed, gy_cores *out);

/* Members that a team gets when nobody says how many: a core each, but no more than the quota runs at a time. Threads
 * beyond it would be stopped in turns, and the others wait for them. */
int gy_cores_members(const gy_cores *c);

/* The core of member i of n, n at most c->n: evenly spread, so that members of one node are neighbours, and nodes get
 * equal shares of work and of the memory that its members touch first. */
int gy_cores_of_member(const gy_cores *c, int i, int n);

#endif
