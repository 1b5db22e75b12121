/* What base's own files ask of control groups: the least that any of them grants. Not for other parts. */
#ifndef GY_BASE_CGROUP_INT_H
#define GY_BASE_CGROUP_INT_H

#include <stddef.h>
#include <stdint.h>

enum { GY_CGROUP_TEXT = 16384 };

/* /proc/self/cgroup: the path of the v2 group ("0::PATH"; controller NULL), or of the v1 group whose controllers
 * include this one ("4:memory:PATH"). Returns 0 when there is none or it does not fit; out is then untouched. */
int gy_cgroup_parse(const char *text, const char *controller, char *out, size_t cap);
/* The beginning of dir/name as text; empty, and 0, when it cannot be read. */
int gy_cgroup_read(const char *dir, const char *name, char text[GY_CGROUP_TEXT]);

/* What the group at dir grants; SIZE_MAX: no limit. */
typedef size_t (*gy_cgroup_fn)(const char *dir, int v2);
/* The least of the process's groups and all above them, with /proc and /sys looked for under root ("" = the real ones).
 */
size_t gy_cgroup_least(const char *root, const char *controller, gy_cgroup_fn of);

#endif
