/* Appending JSON to a reply, where it costs: once or more per token. Nothing here can fail but for memory (gy_str), and
 * no function uses printf but oai_put_f32 on numbers outside its fast range. base/json.h's writer does everything else.
 */
#ifndef GY_SERVER_OAI_WRITE_H
#define GY_SERVER_OAI_WRITE_H

#include "base/json.h"
#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

#define GY_OAI_PUT(s, literal) gy_str_append((s), "" literal, sizeof(literal) - 1)

void gy_oai_put_int(gy_str *s, int64_t v);
void gy_oai_put_f32(gy_str *s, float v);                 /* reads back as the same float; null if not finite */
void gy_oai_put_str(gy_str *s, const char *p, size_t n); /* quoted, escaped, made valid UTF-8 */
void gy_oai_put_strz(gy_str *s, const char *z);          /* NULL: null */
void gy_oai_put_scalar(gy_str *s, const gy_jv *v);       /* what is neither an array nor an object */
/* Nothing a client's parser would choke on: what is less likely than e^-9999, and NaN, is -9999.0. */
void gy_oai_put_logprob(gy_str *s, float v);

#endif
