/* Status codes and the message that goes with them.
 *
 * Codes are grouped by what is lost, because the scheduler and the server act on the group and not on the code:
 * a request error ends one request, a peer error ends what that peer held, an engine error ends the engine.
 * Whoever detects an error fills the gy_err and (outside user input) logs it; whoever passes it on stays silent.
 * Outputs are written only on GY_OK. Nothing below cli/ calls exit or abort except GY_CHECK on a broken invariant.
 */
#ifndef GY_BASE_STATUS_H
#define GY_BASE_STATUS_H

typedef enum gy_status {
    GY_OK = 0,
    GY_AGAIN = 1, /* not now: try later, nothing changed */
    GY_DONE = 2,  /* nothing is left to do */

    /* Request group: one request is lost. */
    GY_E_ARG = -1,         /* a value the caller gave is wrong: option, token id, threshold */
    GY_E_LIMIT = -2,       /* the request can never fit: context, blocks, body size */
    GY_E_CANCELLED = -3,   /* somebody asked for it to stop */
    GY_E_NUMERIC = -4,     /* NaN or all -inf logits */
    GY_E_UNSUPPORTED = -5, /* understood and deliberately not honoured */

    /* Peer group: a worker or connection is lost. */
    GY_E_PEER = -32,
    GY_E_TIMEOUT = -33,

    /* Engine group: the model or the engine cannot go on. */
    GY_E_NOMEM = -64,
    GY_E_IO = -65,     /* open, read, map, write */
    GY_E_FORMAT = -66, /* a file is not what it must be */
    GY_E_DEVICE = -67,
    GY_E_BUG = -68 /* an internal promise was broken */
} gy_status;

typedef enum gy_status_group { GY_GROUP_NONE, GY_GROUP_REQUEST, GY_GROUP_PEER, GY_GROUP_ENGINE } gy_status_group;

gy_status_group gy_status_get_group(gy_status s);
const char *gy_status_name(gy_status s); /* static string, e.g. "bad_argument" */

/* A status with its sentence for a person: file, field, found, expected, what to do. Caller owns the storage. */
typedef struct gy_err {
    gy_status status;
    char msg[1024];
} gy_err;

/* Fills err (which may be NULL) and returns s, so that a detector can write `return gy_err_set(err, GY_E_ARG, ...)`. */
gy_status gy_err_set(gy_err *err, gy_status s, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "prefix: " before the message that is there, for callers that know the file or the field. Returns err->status.
 */
gy_status gy_err_prefix(gy_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Two macros only. GY_TRY in functions that own nothing yet; GY_TRY_GOTO where a label undoes things. */
#define GY_TRY(expr)                                                                                                   \
    do {                                                                                                               \
        gy_status gy_try_status_ = (expr);                                                                             \
        if (gy_try_status_ < 0) return gy_try_status_;                                                                 \
    } while (0)
#define GY_TRY_GOTO(st, expr, label)                                                                                   \
    do {                                                                                                               \
        (st) = (expr);                                                                                                 \
        if ((st) < 0) goto label;                                                                                      \
    } while (0)

/* GY_CHECK always, GY_ASSERT in debug builds, GY_ASSERT_SLOW (walks a structure) in debug builds. Never on input. */
_Noreturn void gy_check_failed(const char *file, int line, const char *what);
#define GY_CHECK(cond) ((cond) ? (void)0 : gy_check_failed(__FILE__, __LINE__, #cond))
#ifdef GY_DEBUG
#define GY_ASSERT(cond) GY_CHECK(cond)
#define GY_ASSERT_SLOW(cond) GY_CHECK(cond)
#else
#define GY_ASSERT(cond) ((void)sizeof(cond))
#define GY_ASSERT_SLOW(cond) ((void)sizeof(cond))
#endif

#endif
