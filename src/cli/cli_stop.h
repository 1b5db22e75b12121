/* Stop strings on a stream of text: text comes in pieces, what can no longer be part of a stop string goes out.
 *
 * The match that counts is the one that is complete first (fewest bytes of text), the longest among those that end
 * together; so the result does not depend on how the text was cut into pieces. The text ends before the match.
 * Request lifetime, single thread.
 */
#ifndef GY_CLI_CLI_STOP_H
#define GY_CLI_CLI_STOP_H

#include "cli/cli_opts.h"

typedef struct gy_stop {
    const gy_opt_list *strings; /* borrowed; empty strings are ignored */
    gy_str held;                /* a suffix of the text that may be the beginning of a stop string */
    int hit;                    /* a stop string was found: nothing goes out any more */
} gy_stop;

void gy_stop_init(gy_stop *s, const gy_opt_list *strings);
void gy_stop_fini(gy_stop *s);
/* Appends to out what became certain. Returns 1 once a stop string was found. */
int gy_stop_push(gy_stop *s, const char *text, size_t len, gy_str *out);
void gy_stop_finish(gy_stop *s, gy_str *out); /* the text has ended: what was held back goes out */

#endif
