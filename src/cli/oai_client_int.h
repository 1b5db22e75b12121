/* Between the files of the client: oai_client.c (loop, life), oai_call.c (what comes back on a call), oai_ask.c (errors
 * as text, calls that are waited for). Nobody else includes it.
 */
#ifndef GY_CLI_OAI_CLIENT_INT_H
#define GY_CLI_OAI_CLIENT_INT_H

#include "cli/oai_client.h"
#include "cli/oai_sse.h"

#include <curl/curl.h>

/* A call is in exactly one of the client's three lists:
 *
 *   (spare) -> waiting -> open -> (on_end) -> spare
 *
 * waiting: posted out of a callback of libcurl, which must not be called from there; the step hands it over. */
struct gy_oai_call {
    gy_oai *c;
    gy_oai_call *prev, *next;
    CURL *easy;
    gy_str body; /* what is sent; libcurl borrows it */
    gy_oai_hooks hooks;
    void *user;
    gy_sse sse;
    gy_str reply; /* whole replies and bodies of errors */
    gy_str why;   /* sentence of a verdict that was found before the transfer ended */
    char curl_why[CURL_ERROR_SIZE];
    gy_oai_end verdict;          /* GY_OAI_ENDS: not known yet */
    int begun;                   /* a byte of the reply's body was seen, or its end: status and kind are known */
    int in_head;                 /* the last line of the reply's head has not come */
    int status, is_stream, done; /* done: [DONE] was seen */
    int64_t begin_ns, last_ns;
};

typedef struct oai_list {
    gy_oai_call *first, *last;
} oai_list;

struct gy_oai {
    CURLM *multi;
    int epfd, timer_fd, wake_fd;
    struct curl_slist *post_head, *get_head;
    char *base, *cacert;
    int insecure, connect_timeout_ms;
    int64_t silence_ns;
    size_t event_max, body_max;
    oai_list open, waiting, spare;
    size_t n_open;
    int64_t curl_due_ns, silence_due_ns; /* -1: not */
    int64_t armed_ns;                    /* what the timer is set to */
    int in_curl;                         /* libcurl is on the stack */
    int to_end;                          /* calls have got a verdict from outside a transfer: the step ends them */
};

enum { OAI_ERROR_BODY_MAX = 64 << 10 }; /* of a body that says what went wrong; the rest is dropped */

void oai_list_push(oai_list *l, gy_oai_call *k);
void oai_list_remove(oai_list *l, gy_oai_call *k);

/* oai_call.c. The callbacks of libcurl. */
size_t oai_call_bytes(char *bytes, size_t size, size_t n, void *call);
size_t oai_call_head(char *line, size_t size, size_t n, void *call);
/* Makes up the verdict once the transfer is over, and tells the hooks. The call is in no list and outside libcurl. */
void oai_call_tell(gy_oai_call *k, CURLcode code);
/* Gives a verdict if there is none yet, with its sentence. */
void oai_call_judge(gy_oai_call *k, gy_oai_end end, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* s without control bytes and invalid UTF-8, at most max bytes of it. */
void oai_put_clean(const char *s, size_t len, size_t max, gy_str *out);

#endif
