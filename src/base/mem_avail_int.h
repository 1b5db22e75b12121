/* What mem_avail.c and its test share: the texts of the system, parsed. Not for other parts. */
#ifndef GY_BASE_MEM_AVAIL_INT_H
#define GY_BASE_MEM_AVAIL_INT_H

#include <stddef.h>

/* /proc/meminfo: bytes of MemAvailable, 0 = not there. */
size_t gy_mem_parse_meminfo(const char *text);
/* Contents of memory.max, memory.current, memory.stat (v2) or memory.limit_in_bytes, memory.usage_in_bytes, memory.stat
 * (v1): bytes left, SIZE_MAX = no limit. File pages that are not in use (inactive) count as left: the system drops them
 * before it runs out, as it does in MemAvailable. */
size_t gy_mem_parse_limit(const char *limit, const char *used, const char *stat);
/* gy_mem_available, with /proc and /sys looked for under root ("" = the real ones). */
size_t gy_mem_available_at(const char *root);

#endif
