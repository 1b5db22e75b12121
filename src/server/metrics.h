/* Metrics and their text, in Prometheus' exposition format 0.0.4. A registry knows nothing of what it counts.
 *
 * Series are made at start, in the order in which they are to be printed; those of one name must follow each other.
 * After that, one thread updates a series (each may have its own) and any thread prints: all values are C11 atomics,
 * nothing locks, nothing allocates but the text. A histogram's count is the sum of the buckets that were read, so that
 * its lines always agree with each other; its sum may be one observation ahead or behind.
 */
#ifndef GY_SERVER_METRICS_H
#define GY_SERVER_METRICS_H

#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gy_metrics gy_metrics; /* the registry */
typedef struct gy_metric gy_metric;   /* one series; lives as long as the registry */

typedef enum gy_metric_type { GY_COUNTER, GY_GAUGE, GY_HISTOGRAM } gy_metric_type;

typedef struct gy_metric_label {
    const char *name, *value; /* any bytes in the value */
} gy_metric_label;

typedef struct gy_metric_spec {
    const char *name; /* [a-zA-Z_:][a-zA-Z0-9_:]*, as on the wire (counters end in _total). Not copied: static */
    const char *help; /* not copied: static */
    gy_metric_type type;
    const double *le; /* histogram: [n_le] bounds, rising, without +Inf. Not copied: static */
    int n_le;
} gy_metric_spec;

gy_metrics *gy_metrics_create(void);    /* NULL on no memory */
void gy_metrics_destroy(gy_metrics *m); /* accepts NULL */

/* Adds a series. labels may be NULL; they are copied. A bad name, a name used before with another spec, or one whose
 * series were left for another is a GY_CHECK. NULL on no memory. */
gy_metric *gy_metrics_add(gy_metrics *m, const gy_metric_spec *spec, const gy_metric_label *labels, int n_label);

void gy_metric_add(gy_metric *s, double v); /* counter (v >= 0) or gauge */
void gy_metric_set(gy_metric *s, double v); /* gauge, or a counter that is counted elsewhere */
void gy_metric_observe(gy_metric *s, double v);
void gy_metric_observe_n(gy_metric *s, double v, uint64_t times); /* the same value so many times */
double gy_metric_value(const gy_metric *s);                       /* counter, gauge: value; histogram: count */

void gy_metrics_text(const gy_metrics *m, gy_str *out);
/* Appends process_*: from /proc and getrlimit. Lines that the system does not tell are left out. */
void gy_metrics_process_text(gy_str *out);

#define GY_METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

#endif
