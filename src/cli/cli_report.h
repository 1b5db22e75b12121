/* One report, two forms: sections of "key value" lines, or one JSON object of objects. The same calls make both, so
 * they cannot disagree.
 */
#ifndef GY_CLI_CLI_REPORT_H
#define GY_CLI_CLI_REPORT_H

#include "base/json.h"

typedef struct gy_report {
    int json;
    gy_str out;
    gy_jw w;
} gy_report;

void gy_report_begin(gy_report *r, int json);
void gy_report_end(gy_report *r); /* r->out is complete; the caller frees it */
void gy_report_section(gy_report *r, const char *name);
void gy_report_section_end(gy_report *r);
void gy_report_int(gy_report *r, const char *key, int64_t v);
void gy_report_ids(gy_report *r, const char *key, const int32_t *ids, int32_t n); /* "none" when there are none */
void gy_report_num(gy_report *r, const char *key, double v);
void gy_report_bool(gy_report *r, const char *key, int v); /* yes, no */
void gy_report_text(gy_report *r, const char *key, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void gy_report_bytes(gy_report *r, const char *key, uint64_t v); /* text form adds MB or GB */

#endif
