/* Stop strings on a stream of text: text comes in pieces, what can no longer be part of a stop string goes out.
 *
 * The match that counts is the one that is complete first (fewest bytes of text), the leftmost among those that end
 * together: generation ends with the byte that completes a stop string, and the result does not depend on how the text
 * was cut into pieces. (A longer string that begins further left but is not complete yet is not waited for.) The text
 * ends before the match, and nothing behind it is ever shown. Bytes, not characters. Request lifetime, single thread;
 * allocates only through `out` and in gy_stop_create.
 */
#ifndef GY_SAMPLE_STOP_H
#define GY_SAMPLE_STOP_H

#include "base/status.h"
#include "base/str.h"

#include <stddef.h>

enum { GY_MAX_STOP = 64, GY_MAX_STOP_BYTES = 1024 };

typedef struct gy_stop_string {
    const char *s; /* [len], not empty */
    size_t len;
} gy_stop_string;

typedef struct gy_stop gy_stop;

/* Copies the strings. n 0 is fine. GY_E_ARG with the sentence for an empty or too long one or too many. */
gy_status gy_stop_create(const gy_stop_string *strings, size_t n, gy_err *err, gy_stop **out);
void gy_stop_destroy(gy_stop *s); /* accepts NULL */
/* Appends to out what became certain. Returns 1 once a stop string was found (also later: nothing goes out any more),
 * else 0; *which_out (may be NULL) is its index then. */
int gy_stop_push(gy_stop *s, const char *text, size_t len, gy_str *out, size_t *which_out);
void gy_stop_finish(gy_stop *s, gy_str *out); /* the text has ended: what was held back goes out */
size_t gy_stop_held(const gy_stop *s);        /* bytes held back now */

#endif
