/* Time. Monotonic only for measuring; wall time only for logs. */
#ifndef GY_BASE_CLOCK_H
#define GY_BASE_CLOCK_H

#include <stdint.h>

int64_t gy_clock_ns(void);      /* CLOCK_MONOTONIC */
int64_t gy_clock_wall_ns(void); /* CLOCK_REALTIME */

#endif
