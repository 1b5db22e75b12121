/* The coordinator among made-up workers that keep to the protocol (msg.h, coord.h, worker.h) and to nothing else: any
 * delay, any order between workers, rejections, transfer errors, silence, deaths with and without their last words,
 * respawns; users that cancel, stop, set deadlines and submit, also from callbacks. From a seed, on a clock of its own.
 *
 * After each step its books are right. No worker is asked for more than it offered. D's pages are never given back
 * while a writer lives. Outputs are the request's own, whole, each told once, whatever was tried again. When faults
 * stop everything ends within bounded time, and nothing is left, here or at any worker.
 *
 *   test_coord_random              the test: all seeds, and that everything worth seeing was seen
 *   test_coord_random SEED         one sequence, told step by step
 *   test_coord_random SEED COUNT   that many from SEED on
 */
#include "base_test.h"

#include "base/mem.h"
#include "pd/coord.h"

#include <stdlib.h>

#if defined(GY_SANITIZED)
enum { N_SEED = 4000 };
#else
enum { N_SEED = 12000 };
#endif

enum {
    MAX_WORKER = 4,
    MAX_JOB = 64,
    MAX_QUEUE = 512,
    MAX_REQ = 64,
    MAX_N = 3,
    MAX_TOKENS = 6,
    MAX_HANDOFF = 2,
    MAX_NOTE = 128,
    MAX_STEPS = 60000 /* after the faults */
};
static const int64_t ms = 1000000;

typedef enum seen {
    S_CANCEL_WAITING,
    S_CANCEL_RESERVE,
    S_CANCEL_OPEN,
    S_CANCEL_ACTIVE,
    S_CANCEL_EXPORT,
    S_CANCEL_LOCAL,
    S_LATE_RESERVED,
    S_SAFE,
    S_P_DIES_WRITING,
    S_D_DIES_OPEN,
    S_D_DIES_ACTIVE,
    S_BOTH_DOWN,
    S_REPLAYED,
    S_GIVEN_UP,
    S_DEADLINE,
    S_AGAIN,
    S_FAILED_WRITE,
    S_STOPPED,
    S_LOST_NOTE,
    S_SILENT,
    S_CROSSED,
    S_LOCAL,
    S_FULL_QUEUE,
    S_LEFT,
    S_NEW_ROLE,
    S_OWED,
    S_MOVED,
    S_BEYOND,
    S_BY_PRIORITY,
    S_CACHED,
    S_WORD,
    S_WORD_WRITING,
    N_SEEN
} seen;
static const char *const seen_name[N_SEEN] = {"cancel of an unanswered RESERVE or unknown",
                                              "cancel before RESERVED",
                                              "cancel of an open import",
                                              "cancel while D decodes",
                                              "cancel while P writes",
                                              "cancel of LOCAL",
                                              "CANCEL_SAFE for a late RESERVED",
                                              "CANCEL_SAFE",
                                              "P dies writing",
                                              "D dies with an open import",
                                              "D dies decoding",
                                              "two workers down",
                                              "replay",
                                              "given up",
                                              "deadline",
                                              "not now",
                                              "failed write",
                                              "stopped by the user",
                                              "lost note",
                                              "silence",
                                              "crossed",
                                              "local",
                                              "full queue",
                                              "left when nothing was left",
                                              "came back as another",
                                              "answer that was owed",
                                              "moved to another D",
                                              "more exports than places",
                                              "better priority first",
                                              "tokens believed to be cached",
                                              "early word of an end",
                                              "early word of a P that writes"};

typedef struct word { /* a message, as much of it as matters here */
    gy_msg_kind kind;
    gy_tid tid;
    uint64_t peer;
    int32_t key, n, max_tokens, choice, index, reason, status;
} word;

typedef struct queue {
    word w[MAX_QUEUE];
    int head, len;
} queue;

typedef enum job_state { J_NONE, J_ASKED, J_OPEN, J_ACTIVE, J_EXPORT, J_LOCAL } job_state;
typedef struct job {
    job_state state;
    gy_tid tid;
    uint64_t peer; /* D: who writes; P: to whom */
    int32_t key, n, n_op, n_flying;
    int is_cancelled, is_orphan, is_full; /* full: every note came */
    int32_t n_out[MAX_N];
    int is_fin[MAX_N];
} job;

typedef struct worker {
    int is_up, is_dying; /* dying: killed, its last words are still to be read, then it is reaped */
    int has_word;        /* dying, and the coordinator has the early word of it: nobody reads on */
    int is_leaving;      /* it said so, or will */
    int is_guest;        /* its slot has no role of its own */
    int32_t role, home;  /* home: its role when nothing changes any more */
    uint64_t epoch;
    int64_t frozen_until;
    queue in, out;
    job job[MAX_JOB];
} worker;

typedef struct note {
    uint64_t from, to;
    gy_tid tid;
} note;

typedef struct user_req {
    int is_live, is_cancelled, has_deadline, was_answered, was_sent;
    int32_t id, key, n, n_left, priority;
    int32_t n_told[MAX_N];
    int is_done[MAX_N];
} user_req;

typedef struct sim {
    uint64_t rng;
    gy_coord *c;
    int n_worker, is_verbose, has_faults, is_ending, n_silent, by_priority;
    uint32_t fault_percent; /* of the steps that could bring one */
    int64_t now, next_ns;
    uint64_t next_epoch;
    int32_t next_key;
    worker w[MAX_WORKER];
    note note[MAX_NOTE];
    int n_note;
    user_req req[MAX_REQ];
    int n_req;
    int64_t *seen;
    char why[512];
} sim;

static uint32_t draw(sim *s, uint32_t below) {
    s->rng = s->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((s->rng >> 33) % below);
}
static int chance(sim *s, uint32_t percent) {
    return draw(s, 100) < percent;
}

static void wrong(sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void wrong(sim *s, const char *fmt, ...) {
    if (s->why[0]) return;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(s->why, sizeof s->why, fmt, ap);
    va_end(ap);
}

static void tell(sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void tell(sim *s, const char *fmt, ...) {
    if (!s->is_verbose) return;
    va_list ap;
    va_start(ap, fmt);
    printf("%8.1f ms  ", (double)s->now * 1e-6);
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
}

static int may_fail(sim *s, uint32_t percent) {
    return s->has_faults && !s->is_ending && chance(s, percent);
}

/* ---- what a request is: a function of its key ---- */

static uint32_t mix(int32_t a, int32_t b, int32_t c) {
    uint64_t x = (uint64_t)(uint32_t)a * 0x9e3779b97f4a7c15u + (uint64_t)(uint32_t)b * 0xbf58476d1ce4e5b9u +
                 (uint64_t)(uint32_t)c * 0x94d049bb133111ebu;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return (uint32_t)(x >> 32);
}
static int32_t token_of(int32_t key, int32_t choice, int32_t index) {
    return (int32_t)(mix(key, choice, index) & 0xffff);
}
static int32_t max_of(int32_t key) {
    return 1 + (int32_t)(mix(key, -1, 0) % MAX_TOKENS);
}
static int32_t length_of(int32_t key, int32_t choice) {
    int32_t len = 1 + (int32_t)(mix(key, choice, -1) % 8);
    return len < max_of(key) ? len : max_of(key);
}
static gy_finish reason_of(int32_t key, int32_t choice) {
    return length_of(key, choice) < max_of(key) ? GY_FINISH_STOP : GY_FINISH_LENGTH;
}
static int32_t stop_of(int32_t key, int32_t choice) { /* output whose callback says GY_STOP */
    return mix(key, choice, -2) % 4 == 0 ? (int32_t)(mix(key, choice, -3) % 4) : -1;
}

/* ---- queues ---- */

static void push(sim *s, queue *q, word w) {
    if (q->len == MAX_QUEUE) {
        wrong(s, "a queue of %d messages is full", MAX_QUEUE);
        return;
    }
    q->w[(q->head + q->len++) % MAX_QUEUE] = w;
}
static word pop(queue *q) {
    word w = q->w[q->head];
    q->head = (q->head + 1) % MAX_QUEUE;
    q->len--;
    return w;
}

static int32_t key_of(const gy_request *r) {
    return r->prompt[r->n_prompt - 1];
}

/* Was an older one passed because it is worse? */
static void note_order(sim *s, const gy_request *r) {
    int n_worse = 0;
    for (int i = 0; i < s->n_req; i++) {
        user_req *u = &s->req[i];
        if (u->key == key_of(r))
            u->was_sent = 1;
        else if (u->key < key_of(r))
            n_worse += u->is_live && !u->was_sent && u->priority > r->priority;
    }
    s->seen[S_BY_PRIORITY] += s->by_priority && n_worse;
}

static void on_send(void *user, int32_t i, const gy_msg *m) {
    sim *s = user;
    tell(s, "         coord -> %d  %s %llx", i, gy_msg_name(m->kind), (unsigned long long)(m->tid.lo & 0xffff));
    worker *w = &s->w[i];
    if (!w->is_up || w->is_dying) return;
    word x = {.kind = m->kind, .tid = m->tid, .peer = m->peer, .n = m->request.r.n};
    x.key = m->request.r.prompt ? key_of(&m->request.r) : -1;
    if (m->kind == GY_MSG_RESERVE || m->kind == GY_MSG_LOCAL) note_order(s, &m->request.r);
    push(s, &w->in, x);
}

static int on_random(void *user, void *bytes, size_t n) {
    unsigned char *b = bytes;
    for (size_t i = 0; i < n; i++) b[i] = (unsigned char)draw(user, 256);
    return 0;
}

/* ---- workers ---- */

static void say(sim *s, worker *w, word x) {
    push(s, &w->out, x);
}
static void say_of(sim *s, worker *w, gy_msg_kind k, const job *j) {
    say(s, w, (word){.kind = k, .tid = j->tid});
}

static job *find_job(worker *w, gy_tid tid) {
    for (int i = 0; i < MAX_JOB; i++)
        if (w->job[i].state != J_NONE && gy_tid_same(w->job[i].tid, tid)) return &w->job[i];
    return NULL;
}

static worker *find_worker(sim *s, uint64_t epoch) { /* alive: it can still write */
    for (int i = 0; i < s->n_worker; i++)
        if (s->w[i].is_up && s->w[i].epoch == epoch) return &s->w[i];
    return NULL;
}

/* So many in each direction; prompts that are late because their D was (coord.h) come on top, and are queued. */
static void check_offers(sim *s, worker *w) {
    int n_import = 0, n_export = 0;
    for (int i = 0; i < MAX_JOB; i++) {
        job_state st = w->job[i].state;
        n_import += st == J_ASKED || st == J_OPEN;
        n_export += st == J_EXPORT;
    }
    gy_coord_stats t;
    gy_coord_get_stats(s->c, &t);
    s->seen[S_BEYOND] += n_export > MAX_HANDOFF;
    if (n_import > MAX_HANDOFF || n_export > (t.n_owed ? MAX_WORKER : 1) * MAX_HANDOFF)
        wrong(s, "a worker has %d imports and %d exports, it offered %d", n_import, n_export, MAX_HANDOFF);
}

static void new_job(sim *s, worker *w, job_state st, const word *x) {
    if (find_job(w, x->tid)) wrong(s, "one tid twice at one worker");
    for (int i = 0; i < MAX_JOB; i++) {
        if (w->job[i].state != J_NONE) continue;
        w->job[i] = (job){.state = st, .tid = x->tid, .peer = x->peer, .key = x->key, .n = x->n};
        w->job[i].n_op = 1 + (int32_t)draw(s, 3);
        check_offers(s, w);
        return;
    }
    wrong(s, "a worker has more than %d jobs", MAX_JOB);
}

/* Whoever may still write pages of this try: the job itself, or a PREFILL that was sent. */
static int has_writer(sim *s, gy_tid tid) {
    for (int i = 0; i < s->n_worker; i++) {
        worker *w = &s->w[i];
        if (!w->is_up) continue;
        job *j = find_job(w, tid);
        if (j && j->state == J_EXPORT) return 1;
        for (int k = 0; !w->is_dying && k < w->in.len; k++) {
            word *x = &w->in.w[(w->in.head + k) % MAX_QUEUE];
            if (x->kind == GY_MSG_PREFILL && gy_tid_same(x->tid, tid)) return 1;
        }
    }
    return 0;
}

static void let_go(sim *s, worker *w, job *j) {
    say_of(s, w, GY_MSG_RELEASED, j);
    j->state = J_NONE;
}

static void free_pages(sim *s, worker *w, job *j) {
    if (has_writer(s, j->tid)) wrong(s, "pages of %llx are given back, a writer lives", (unsigned long long)j->tid.lo);
    let_go(s, w, j);
}

static void cut_short(sim *s, worker *w, job *j) { /* the engine's cancel: events of their own, then nothing is left */
    for (int k = 0; k < j->n; k++)
        if (!j->is_fin[k])
            say(s, w,
                (word){.kind = GY_MSG_FINISH,
                       .tid = j->tid,
                       .choice = k,
                       .reason = GY_FINISH_CANCELLED,
                       .index = j->n_out[k]});
    let_go(s, w, j);
}

static void heard_cancel(sim *s, worker *w, job *j) {
    static const seen of[] = {[J_ASKED] = S_CANCEL_RESERVE, [J_OPEN] = S_CANCEL_OPEN,   [J_ACTIVE] = S_CANCEL_ACTIVE,
                              [J_EXPORT] = S_CANCEL_EXPORT, [J_LOCAL] = S_CANCEL_LOCAL, [J_NONE] = S_CANCEL_WAITING};
    s->seen[of[j ? j->state : J_NONE]]++;
    if (!j) return;
    j->is_cancelled = 1;
    if (j->state == J_ASKED) let_go(s, w, j);
    if (j->state == J_EXPORT && !j->n_flying) let_go(s, w, j);
    if (j->state == J_ACTIVE || j->state == J_LOCAL) cut_short(s, w, j);
}

static void heard_gone(sim *s, worker *w, uint64_t peer) {
    for (int i = 0; i < MAX_JOB; i++) {
        job *j = &w->job[i];
        if (j->state == J_NONE || j->peer != peer) continue;
        if (j->state == J_OPEN) j->is_orphan = 1;
        if (j->state == J_EXPORT) j->n_flying = 0; /* its ops end */
        if (j->state == J_EXPORT && j->is_cancelled) let_go(s, w, j);
    }
}

static void stop(sim *s, worker *w) {
    for (int i = 0; i < MAX_JOB; i++)
        if (w->job[i].state != J_NONE) wrong(s, "it is told to stop with a job in state %d", w->job[i].state);
    w->is_dying = 1;
    s->seen[S_LEFT]++;
}

static void hear(sim *s, worker *w) {
    word x = pop(&w->in);
    job *j = find_job(w, x.tid);
    if (x.kind == GY_MSG_CONNECT)
        say(s, w, (word){.kind = GY_MSG_CONNECTED, .peer = x.peer, .status = may_fail(s, 3) ? -32 : 0});
    if (x.kind == GY_MSG_GONE) heard_gone(s, w, x.peer);
    if (x.kind == GY_MSG_RESERVE) new_job(s, w, J_ASKED, &x);
    if (x.kind == GY_MSG_LOCAL) new_job(s, w, J_LOCAL, &x);
    if (x.kind == GY_MSG_PREFILL) new_job(s, w, J_EXPORT, &x);
    if (x.kind == GY_MSG_STOP) stop(s, w);
    if (x.kind == GY_MSG_CANCEL) heard_cancel(s, w, j);
    if (x.kind == GY_MSG_CANCEL_SAFE) {
        s->seen[S_SAFE]++;
        if (j && (j->state == J_ACTIVE || j->state == J_LOCAL)) wrong(s, "CANCEL_SAFE while D decodes");
        if (j && j->state == J_ASKED) wrong(s, "CANCEL_SAFE before RESERVED");
        if (j && j->state == J_OPEN) free_pages(s, w, j);
    }
}

static void reject(sim *s, worker *w, job *j) {
    static const int32_t how[3] = {GY_AGAIN, GY_E_PEER, GY_E_DEVICE};
    int32_t st = how[draw(s, 3)];
    s->seen[st == GY_AGAIN ? S_AGAIN : S_FAILED_WRITE]++;
    say(s, w, (word){.kind = GY_MSG_REJECTED, .tid = j->tid, .status = st});
    j->state = J_NONE;
}

static void work_decode(sim *s, worker *w, job *j) {
    int32_t k = (int32_t)draw(s, (uint32_t)j->n);
    while (j->is_fin[k]) k = (k + 1) % j->n;
    if (j->n_out[k] < length_of(j->key, k)) {
        say(s, w, (word){.kind = GY_MSG_TOKEN, .tid = j->tid, .key = j->key, .choice = k, .index = j->n_out[k]++});
        return;
    }
    word x = {.kind = GY_MSG_FINISH, .tid = j->tid, .choice = k, .index = j->n_out[k]};
    x.reason = (int32_t)reason_of(j->key, k);
    say(s, w, x);
    j->is_fin[k] = 1;
    for (int32_t i = 0; i < j->n; i++)
        if (!j->is_fin[i]) return;
    let_go(s, w, j);
}

static void send_note(sim *s, worker *w, job *j) {
    if (s->n_note == MAX_NOTE) {
        wrong(s, "too many notes");
        return;
    }
    s->note[s->n_note++] = (note){.from = w->epoch, .to = j->peer, .tid = j->tid};
}

static void work_export(sim *s, worker *w, job *j) {
    if (j->n_flying) {
        j->n_flying--; /* an op is done */
        if (j->is_cancelled && !j->n_flying) let_go(s, w, j);
        if (!j->is_cancelled && !j->n_flying && !j->n_op) {
            send_note(s, w, j);
            say_of(s, w, GY_MSG_PREFILLED, j);
            j->state = J_NONE;
        }
    } else if (may_fail(s, 5))
        reject(s, w, j);
    else if (j->n_op) {
        j->n_op--;
        j->n_flying++;
    } else /* all were posted, and ended when D had gone */
        reject(s, w, j);
}

static void work(sim *s, worker *w) {
    int first = (int)draw(s, MAX_JOB);
    job *j = NULL;
    for (int i = 0; i < MAX_JOB && !j; i++)
        if (w->job[(first + i) % MAX_JOB].state != J_NONE) j = &w->job[(first + i) % MAX_JOB];
    if (!j) return;
    if (j->state == J_EXPORT) work_export(s, w, j);
    if (j->state == J_ACTIVE || j->state == J_LOCAL) {
        if (j->state == J_LOCAL && !j->n_out[0] && may_fail(s, 3))
            reject(s, w, j);
        else
            work_decode(s, w, j);
    }
    if (j->state == J_ASKED) {
        if (may_fail(s, 5))
            reject(s, w, j);
        else {
            say_of(s, w, GY_MSG_RESERVED, j);
            j->state = J_OPEN;
        }
    }
    if (j->state == J_OPEN && j->is_full && !j->is_cancelled && !j->is_orphan) {
        say_of(s, w, GY_MSG_ACTIVE, j);
        j->state = J_ACTIVE;
    }
}

static void deliver_note(sim *s) {
    int i = (int)draw(s, (uint32_t)s->n_note);
    note n = s->note[i];
    s->note[i] = s->note[--s->n_note];
    worker *d = find_worker(s, n.to);
    job *j = d && !d->is_dying ? find_job(d, n.tid) : NULL;
    if (j && j->peer != n.from) wrong(s, "a note of another writer than RESERVE named");
    if (j && j->state == J_OPEN) j->is_full = 1;
}

/* ---- life and death ---- */

static void spawn(sim *s, int i) {
    worker *w = &s->w[i];
    int32_t role = w->role;
    int is_guest = w->is_guest;
    if (is_guest) role = chance(s, 30) && !s->is_ending ? 1 + (int32_t)draw(s, 3) : w->home;
    s->seen[S_NEW_ROLE] += role != w->role;
    *w = (worker){.is_up = 1, .role = role, .home = w->home, .is_guest = is_guest, .epoch = ++s->next_epoch};
    tell(s, "%d is born", i);
    say(s, w, (word){.kind = GY_MSG_READY, .peer = w->epoch});
}

static void kill_worker(sim *s, int i) {
    worker *w = &s->w[i];
    tell(s, "%d is killed", i);
    w->is_dying = 1;
    w->frozen_until = 0;
    w->in.len = 0;
    w->out.len = w->out.len ? (int)draw(s, (uint32_t)w->out.len + 1) : 0;
    for (int k = 0; k < MAX_JOB; k++) {
        s->seen[S_P_DIES_WRITING] += w->job[k].state == J_EXPORT;
        s->seen[S_D_DIES_OPEN] += w->job[k].state == J_OPEN;
        s->seen[S_D_DIES_ACTIVE] += w->job[k].state == J_ACTIVE;
    }
    for (int k = 0; k < s->n_note; k++)
        if (s->note[k].from == w->epoch && chance(s, 50)) {
            s->note[k--] = s->note[--s->n_note];
            s->seen[S_LOST_NOTE]++;
        }
}

/* What it said last was read, or will not be. */
static void tell_word(sim *s, int i) {
    worker *w = &s->w[i];
    tell(s, "%d ends", i);
    w->has_word = 1;
    w->out.len = 0;
    s->seen[S_WORD]++;
    for (int k = 0; k < MAX_JOB; k++) s->seen[S_WORD_WRITING] += w->job[k].state == J_EXPORT;
    gy_coord_dying(s->c, i, s->now);
}

static void reap(sim *s, int i) {
    tell(s, "%d is reaped", i);
    s->w[i].is_up = s->w[i].is_dying = s->w[i].has_word = 0;
    memset(s->w[i].job, 0, sizeof s->w[i].job);
    gy_coord_dead(s->c, i, s->now);
    int n_down = 0;
    for (int k = 0; k < s->n_worker; k++) n_down += !s->w[k].is_up;
    s->seen[S_BOTH_DOWN] += n_down > 1;
}

/* ---- coordinator hears ---- */

static gy_msg message_of(const sim *s, const worker *w, const word *x) {
    (void)s;
    gy_msg m = {.kind = x->kind, .tid = x->tid, .peer = x->peer, .status = x->status, .text = "said so", .n_text = 7};
    m.token = (gy_msg_token){
        .choice = x->choice, .index = x->index, .token = token_of(x->key, x->choice, x->index), .loops = 1};
    m.finish = (gy_msg_finish){.choice = x->choice, .reason = x->reason, .n_output = x->index, .stop_id = -1};
    m.ready = (gy_msg_ready){.role = w->role, .pid = 1};
    m.ready.info = (gy_pd_info){.family = "ouro", .n_loop = 2, .depth = 2, .n_layer = {1, 0}};
    m.ready.info.max_seqs = 2;
    m.ready.info.max_queue = 64;
    m.ready.info.max_handoff = MAX_HANDOFF;
    m.ready.info.n_block[0] = 24;
    return m;
}

static void listen(sim *s, int i) {
    worker *w = &s->w[i];
    word x = pop(&w->out);
    gy_msg m = message_of(s, w, &x);
    gy_err err = {0};
    tell(s, "%d -> coord  %s %llx %d.%d", i, gy_msg_name(x.kind), (unsigned long long)(x.tid.lo & 0xffff), x.choice,
         x.index);
    int64_t n_before = w->in.len;
    if (gy_coord_message(s->c, i, &m, s->now, &err) < 0) wrong(s, "an honest message was refused: %s", err.msg);
    if (x.kind == GY_MSG_RESERVED && w->in.len > n_before) s->seen[S_LATE_RESERVED]++;
    if (x.kind == GY_MSG_ACTIVE) s->seen[S_CROSSED]++;
}

/* ---- users ---- */

static user_req *req_of(sim *s, int32_t id) {
    for (int i = 0; i < s->n_req; i++)
        if (s->req[i].id == id) return &s->req[i];
    wrong(s, "an event of request %d, which never was", id);
    return &s->req[0];
}

static void submit(sim *s);
static void cancel_some(sim *s) {
    if (!s->n_req) return;
    user_req *u = &s->req[draw(s, (uint32_t)s->n_req)];
    tell(s, "user cancels %d", u->id);
    gy_coord_cancel(s->c, u->id);
    if (u->is_live) u->is_cancelled = 1;
}

static void react(sim *s) { /* in a callback */
    if (s->is_ending) return;
    if (chance(s, 5)) cancel_some(s);
    if (chance(s, 5)) submit(s);
}

static gy_verdict on_token(void *arg, const gy_token_event *ev) {
    sim *s = arg;
    user_req *u = req_of(s, ev->request);
    int32_t k = ev->choice;
    if (k < 0 || k >= u->n || u->is_done[k]) wrong(s, "request %d: a token of choice %d after its end", u->id, k);
    if (ev->index != u->n_told[k]) wrong(s, "request %d.%d: output %d, expected %d", u->id, k, ev->index, u->n_told[k]);
    if (ev->token != token_of(u->key, k, ev->index) || ev->sampled->id != ev->token)
        wrong(s, "request %d.%d: output %d is another's", u->id, k, ev->index);
    u->n_told[k]++;
    react(s);
    int stops = stop_of(u->key, k) == ev->index;
    s->seen[S_STOPPED] += stops;
    return stops ? GY_STOP : GY_CONTINUE;
}

static void check_reason(sim *s, const user_req *u, const gy_finish_event *ev) {
    int32_t k = ev->choice, stop = stop_of(u->key, k), len = length_of(u->key, k);
    int is_stopped = stop >= 0 && u->n_told[k] == stop + 1;
    if (ev->reason == GY_FINISH_CANCELLED && !u->is_cancelled) wrong(s, "request %d: cancelled by nobody", u->id);
    if (ev->reason == GY_FINISH_STOP && is_stopped) return;
    if (ev->reason == GY_FINISH_STOP || ev->reason == GY_FINISH_LENGTH) {
        if (u->n_told[k] != len || ev->reason != reason_of(u->key, k))
            wrong(s, "request %d.%d: %s after %d of %d outputs", u->id, k, gy_finish_name(ev->reason), u->n_told[k],
                  len);
    }
    if (ev->reason != GY_FINISH_ERROR) return;
    s->seen[S_DEADLINE] += ev->err->status == GY_E_TIMEOUT;
    s->seen[S_GIVEN_UP] += ev->err->status == GY_E_PEER;
    if (ev->err->status == GY_E_TIMEOUT && u->has_deadline) return;
    if (ev->err->status == GY_E_PEER && s->has_faults) return;
    wrong(s, "request %d: %s", u->id, ev->err->msg);
}

static void on_finish(void *arg, const gy_finish_event *ev) {
    sim *s = arg;
    user_req *u = req_of(s, ev->request);
    tell(s, "     request %d.%d ends: %s", u->id, ev->choice, gy_finish_name(ev->reason));
    if (!u->is_live || u->is_done[ev->choice]) wrong(s, "request %d.%d: it ends twice", u->id, ev->choice);
    u->is_done[ev->choice] = 1;
    if (ev->n_left != --u->n_left) wrong(s, "request %d: n_left %d, expected %d", u->id, ev->n_left, u->n_left);
    if (ev->n_output != u->n_told[ev->choice]) wrong(s, "request %d: n_output %d", u->id, ev->n_output);
    check_reason(s, u, ev);
    if (!u->n_left) u->is_live = 0;
    react(s);
}

static void submit(sim *s) {
    if (s->n_req == MAX_REQ) return;
    user_req u = {.is_live = 1,
                  .priority = (int32_t)draw(s, 3) - 1,
                  .key = s->next_key++,
                  .n = chance(s, 70) ? 1 : 1 + (int32_t)draw(s, MAX_N)};
    int32_t prompt[200], n_prompt = 1 + (int32_t)draw(s, 200), text = (int32_t)draw(s, 3);
    for (int32_t i = 0; i < n_prompt; i++) prompt[i] = text;
    prompt[n_prompt - 1] = u.key;
    gy_msg_request q = {.grammar_kind = -1};
    q.r = (gy_request){.prompt = prompt,
                       .n_prompt = n_prompt,
                       .max_tokens = max_of(u.key),
                       .n = u.n,
                       .priority = u.priority,
                       .prompt_logprobs = -1,
                       .on_token = on_token,
                       .on_finish = on_finish,
                       .arg = s};
    gy_coord_request r = {.q = &q, .can_cross = chance(s, 92)};
    if (chance(s, 10)) r.deadline_ns = s->now + (1 + (int64_t)draw(s, 400)) * ms;
    u.has_deadline = r.deadline_ns != 0;
    u.n_left = u.n;
    gy_err err = {0};
    gy_status st = gy_coord_submit(s->c, &r, s->now, &err, &u.id);
    s->seen[S_FULL_QUEUE] += st == GY_AGAIN;
    if (st < 0) wrong(s, "submit: %s", err.msg);
    if (st == GY_OK) s->req[s->n_req++] = u;
    if (st == GY_OK) tell(s, "user submits %d", u.id);
}

/* ---- the world ---- */

/* As the shell does: who leaves and has nothing left is told to stop, once. */
static void stop_who_left(sim *s) {
    for (int i = 0; i < s->n_worker; i++) {
        worker *w = &s->w[i];
        if (!w->is_leaving || !gy_coord_may_stop(s->c, i)) continue;
        w->is_leaving = 0;
        on_send(s, i, &(gy_msg){.kind = GY_MSG_STOP});
    }
}

static void turn(sim *s) {
    gy_coord_turn(s->c, s->now, &s->next_ns);
    stop_who_left(s);
}

static void check_all(sim *s) {
    char why[256];
    if (!gy_coord_is_valid(s->c, why, sizeof why)) wrong(s, "books: %s", why);
    if (s->is_ending) return;
    gy_coord_stats t;
    gy_coord_get_stats(s->c, &t);
    int n_live = 0;
    for (int i = 0; i < s->n_req; i++) n_live += s->req[i].is_live;
    int n_known = t.n_waiting + t.n_reserving + t.n_prefill + t.n_decode;
    if (n_known != n_live) wrong(s, "%d requests live, the coordinator knows %d", n_live, n_known);
}

static int is_awake(const sim *s, const worker *w) {
    return w->is_up && !w->is_dying && w->frozen_until <= s->now;
}

static void step_worker(sim *s, int i) {
    worker *w = &s->w[i];
    int what = (int)draw(s, 3);
    if (w->is_up && w->is_dying) {
        if (!w->has_word && chance(s, 20))
            tell_word(s, i);
        else if (w->out.len && what)
            listen(s, i);
        else if (!w->out.len)
            reap(s, i);
        return;
    }
    if (!w->is_up) {
        if (s->is_ending || chance(s, 40)) spawn(s, i);
        return;
    }
    if (!is_awake(s, w)) return;
    if (what == 0 && w->in.len) hear(s, w);
    if (what == 1 && w->out.len) listen(s, i);
    if (what == 2) work(s, w);
}

static void fault(sim *s) {
    int i = (int)draw(s, (uint32_t)s->n_worker);
    worker *w = &s->w[i];
    if (!w->is_up || w->is_dying) return;
    if (chance(s, 30) && !w->is_leaving) {
        w->is_leaving = 1;
        if (chance(s, 50))
            gy_coord_leave(s->c, i);
        else
            say(s, w, (word){.kind = GY_MSG_LEAVING});
    } else if (chance(s, 50))
        kill_worker(s, i);
    else {
        w->frozen_until = s->now + (int64_t)draw(s, 2000) * ms;
        s->seen[S_SILENT]++;
    }
}

static void step(sim *s) {
    s->now += (int64_t)draw(s, 3000) * 1000;
    uint32_t what = draw(s, 100);
    if (s->is_ending) what = 12 + what % 88;
    if (what < 5)
        submit(s);
    else if (what < 8)
        cancel_some(s);
    else if (what < 12 && s->has_faults && chance(s, s->fault_percent))
        fault(s);
    else if (what < 18 && s->n_note)
        deliver_note(s);
    else
        step_worker(s, (int)draw(s, (uint32_t)s->n_worker));
    if (chance(s, 40) || s->now >= s->next_ns) turn(s);
    check_all(s);
}

static int is_over(sim *s) {
    int64_t next_ns;
    for (int i = 0; i < s->n_worker; i++)
        if (!s->w[i].is_up || s->w[i].is_dying || s->w[i].in.len || s->w[i].out.len) return 0;
    return gy_coord_turn(s->c, s->now, &next_ns) == GY_DONE;
}

static void check_end(sim *s) {
    gy_coord_stats t;
    gy_coord_get_stats(s->c, &t);
    for (int i = 0; i < s->n_req; i++)
        if (s->req[i].is_live) wrong(s, "request %d never ended", s->req[i].id);
    for (int i = 0; i < s->n_worker; i++)
        for (int k = 0; k < MAX_JOB; k++)
            if (s->w[i].job[k].state != J_NONE)
                wrong(s, "worker %d: a job in state %d is left", i, s->w[i].job[k].state);
    if (t.n_waiting || t.n_reserving || t.n_prefill || t.n_decode || t.n_cleanup) wrong(s, "tries are left");
    int64_t n_end = 0;
    int32_t n_choice = 0;
    for (int i = 0; i <= GY_FINISH_ERROR; i++) n_end += t.n_finish[i];
    for (int i = 0; i < s->n_req; i++) n_choice += s->req[i].n;
    if (n_end != n_choice) wrong(s, "%lld finish events for %d choices", (long long)n_end, n_choice);
    if (!s->has_faults && t.n_retry) wrong(s, "%lld tries failed without a fault", (long long)t.n_retry);
    s->seen[S_REPLAYED] += t.n_swallowed;
    s->seen[S_OWED] += t.n_owed;
    s->seen[S_MOVED] += t.n_move;
    s->seen[S_CACHED] += t.prefix_est_tok;
    s->seen[S_LOCAL] += t.n_local;
}

static void open_sim(sim *s) {
    static const int32_t roles[6][MAX_WORKER] = {{1, 2}, {1, 2, 2}, {1, 1, 2, 2}, {1, 2, 1}, {3, 2, 1}, {3, 3, 2}};
    static const int n[6] = {2, 3, 4, 3, 3, 3};
    int shape = (int)draw(s, 6);
    gy_coord_opts o;
    gy_coord_opts_default(&o);
    s->n_worker = o.n_worker = n[shape];
    memcpy(o.role, roles[shape], sizeof roles[shape]);
    s->has_faults = chance(s, 75);
    s->fault_percent = 5 + draw(s, 70);
    o.reserve_ns = s->has_faults ? (50 + (int64_t)draw(s, 500)) * ms : 1000000 * ms;
    o.prefill_ns = s->has_faults ? (50 + (int64_t)draw(s, 500)) * ms : 1000000 * ms;
    o.ask_ns = (1 + (int64_t)draw(s, 40)) * ms;
    o.suspect_ns = o.ask_ns + (int64_t)draw(s, 300) * ms;
    s->by_priority = chance(s, 40);
    o.policy = s->by_priority ? GY_SCHED_PRIORITY : GY_SCHED_FCFS;
    o.max_bypass = (int32_t)draw(s, 6);
    o.prefix_cache = chance(s, 70);
    o.local_queue = chance(s, 70) ? 0 : (int32_t)draw(s, 200);
    o.max_queue = 3 + (int32_t)draw(s, 12);
    o.max_prefill = 1 + (int32_t)draw(s, 3);
    o.local_below = chance(s, 75) ? 0 : (int32_t)draw(s, 60);
    o.user = s;
    o.send = on_send;
    o.random = on_random;
    for (int i = 0; i < s->n_worker; i++) {
        s->w[i].role = s->w[i].home = o.role[i];
        s->w[i].is_guest = s->has_faults && chance(s, 30);
        if (s->w[i].is_guest) o.role[i] = 0;
    }
    gy_err err = {0};
    if (gy_coord_create(&o, &err, &s->c) < 0) wrong(s, "%s", err.msg);
    for (int i = 0; i < s->n_worker; i++) spawn(s, i);
}

static void no_more_faults(sim *s) {
    s->is_ending = 1;
    for (int i = 0; i < s->n_worker; i++) {
        s->w[i].frozen_until = 0;
        if (s->w[i].is_up && !s->w[i].is_dying && s->w[i].role != s->w[i].home) kill_worker(s, i);
    }
}

/* 1: well. */
static int run(uint64_t seed, int is_verbose, int64_t *seen_out, char *why, size_t cap) {
    sim *s = calloc(1, sizeof *s);
    s->rng = seed * 0x9e3779b97f4a7c15u + 12345;
    s->is_verbose = is_verbose;
    s->seen = seen_out;
    draw(s, 2);
    open_sim(s);
    int n = 100 + (int)draw(s, 500);
    for (int i = 0; i < n && !s->why[0]; i++) step(s);
    no_more_faults(s);
    int left = MAX_STEPS;
    while (!s->why[0] && left-- && !is_over(s)) step(s);
    if (!s->why[0] && left < 0) wrong(s, "not over after %d steps without faults", MAX_STEPS);
    if (!s->why[0]) check_end(s);
    gy_coord_destroy(s->c);
    snprintf(why, cap, "%s", s->why);
    int is_well = !s->why[0];
    free(s);
    return is_well;
}

static void sequences_end_well(void **state) {
    (void)state;
    int64_t total[N_SEEN] = {0};
    char why[512];
    for (uint64_t seed = 1; seed <= N_SEED; seed++)
        if (!run(seed, 0, total, why, sizeof why)) fail_msg("seed %llu: %s", (unsigned long long)seed, why);
    for (int i = 0; i < N_SEEN; i++)
        if (total[i] < N_SEED / 2000) fail_msg("\"%s\" was seen %lld times", seen_name[i], (long long)total[i]);
    gy_mem_stats m;
    gy_mem_get_stats(&m);
    assert_int_equal(m.live_bytes[GY_MEM_PD], 0);
}

/* ---- workers that say anything ----------------------------------------------------------------------------------- */

typedef struct liars {
    sim s; /* of it: the random numbers, the clock, the coordinator */
    gy_tid tid[16];
    int n_tid;
    int32_t n_choice, n_finish;
    uint64_t epoch;
} liars;

static void lie_send(void *user, int32_t i, const gy_msg *m) {
    liars *l = user;
    (void)i;
    if (m->kind == GY_MSG_RESERVE || m->kind == GY_MSG_LOCAL) l->tid[l->n_tid++ % 16] = m->tid;
}

static int lie_random(void *user, void *bytes, size_t n) {
    return on_random(&((liars *)user)->s, bytes, n);
}

static gy_verdict lie_token(void *arg, const gy_token_event *ev) {
    liars *l = arg;
    if (ev->index >= 4) wrong(&l->s, "output %d of at most 4", ev->index);
    if (chance(&l->s, 10)) gy_coord_cancel(l->s.c, (int32_t)draw(&l->s, 20));
    return chance(&l->s, 10) ? GY_STOP : GY_CONTINUE;
}

static void lie_finish(void *arg, const gy_finish_event *ev) {
    (void)ev;
    ((liars *)arg)->n_finish++;
}

static void lie_submit(liars *l) {
    static const int32_t prompt[100];
    gy_msg_request q = {.grammar_kind = -1};
    q.r = (gy_request){.prompt = prompt,
                       .n_prompt = 1 + (int32_t)draw(&l->s, 100),
                       .max_tokens = 4,
                       .n = 1 + (int32_t)draw(&l->s, MAX_N),
                       .prompt_logprobs = chance(&l->s, 20) ? 0 : -1,
                       .on_token = lie_token,
                       .on_finish = lie_finish,
                       .arg = l};
    gy_coord_request r = {.q = &q, .can_cross = chance(&l->s, 80)};
    gy_err err;
    int32_t id;
    if (gy_coord_submit(l->s.c, &r, l->s.now, &err, &id) == GY_OK) l->n_choice += q.r.n;
}

static int32_t any_number(sim *s) {
    static const int32_t odd[] = {-1, INT32_MIN, INT32_MAX, 4, 128, GY_E_PEER, GY_E_LIMIT, GY_AGAIN};
    return chance(s, 80) ? (int32_t)draw(s, 3) : odd[draw(s, 8)];
}

static void lie(liars *l) {
    sim *s = &l->s;
    int32_t i = (int32_t)draw(s, 3);
    worker w = {.role = i == 0 ? 1 : i + 1};
    word x = {.kind = (gy_msg_kind)(1 + draw(s, 12)), .choice = any_number(s), .index = any_number(s)};
    x.reason = (int32_t)draw(s, 4);
    x.status = any_number(s);
    x.tid = l->n_tid ? l->tid[draw(s, (uint32_t)(l->n_tid < 16 ? l->n_tid : 16))] : (gy_tid){1, 2};
    x.peer = x.kind == GY_MSG_READY ? ++l->epoch : 1 + draw(s, (uint32_t)l->epoch + 1);
    if (x.kind == GY_MSG_FATAL && chance(s, 90)) x.kind = GY_MSG_ACTIVE;
    gy_msg m = message_of(s, &w, &x);
    m.tables.n_have = any_number(s);
    m.sent.n_computed = any_number(s);
    gy_err err = {0};
    if (gy_coord_message(s->c, i, &m, s->now, &err) < 0) {
        if (!err.msg[0]) wrong(s, "refused without a sentence");
        gy_coord_dead(s->c, i, s->now);
    }
}

static void lie_ready(liars *l, int32_t i) {
    worker w = {.role = i == 0 ? 1 : i + 1};
    word x = {.kind = GY_MSG_READY, .peer = ++l->epoch};
    gy_msg m = message_of(&l->s, &w, &x);
    gy_coord_message(l->s.c, i, &m, l->s.now, NULL);
    for (uint64_t e = 1; e <= l->epoch; e++) { /* whoever was asked */
        gy_msg c = {.kind = GY_MSG_CONNECTED, .peer = e};
        if (gy_coord_n_ready(l->s.c, GY_PD_PREFILL)) gy_coord_message(l->s.c, 0, &c, l->s.now, NULL);
    }
}

static void lie_step(liars *l) {
    sim *s = &l->s;
    uint32_t what = draw(s, 100);
    s->now += (int64_t)draw(s, 20) * ms;
    if (what < 10) lie_submit(l);
    if (what >= 10 && what < 15) gy_coord_cancel(s->c, (int32_t)draw(s, 20));
    if (what >= 15 && what < 30) lie_ready(l, (int32_t)draw(s, 3));
    if (what >= 30 && what < 70) gy_coord_turn(s->c, s->now, &s->next_ns);
    if (what >= 70) lie(l);
    char why[256];
    if (!gy_coord_is_valid(s->c, why, sizeof why)) wrong(s, "books: %s", why);
}

static void lies_end(liars *l) {
    sim *s = &l->s;
    for (int32_t i = 0; i < 3; i++) gy_coord_dead(s->c, i, s->now);
    for (int32_t id = 0; id < l->n_choice; id++) gy_coord_cancel(s->c, id);
    gy_coord_turn(s->c, s->now, &s->next_ns);
    if (gy_coord_turn(s->c, s->now, &s->next_ns) != GY_DONE) wrong(s, "something is left");
    if (l->n_finish != l->n_choice) wrong(s, "%d finish events for %d choices", l->n_finish, l->n_choice);
    gy_coord_destroy(s->c);
}

static void whatever_is_said_the_books_are_right(void **state) {
    (void)state;
    static liars l;
    gy_err err;
    for (uint64_t seed = 1; seed <= N_SEED / 4; seed++) {
        memset(&l, 0, sizeof l);
        l.s.rng = seed;
        gy_coord_opts o;
        gy_coord_opts_default(&o);
        o.n_worker = 3;
        for (int i = 0; i < 3; i++) o.role[i] = i == 0 ? 1 : i + 1;
        o.user = &l;
        o.send = lie_send;
        o.random = lie_random;
        assert_int_equal(gy_coord_create(&o, &err, &l.s.c), GY_OK);
        for (int i = 0; i < 300 && !l.s.why[0]; i++) lie_step(&l);
        if (!l.s.why[0]) lies_end(&l);
        if (l.s.why[0]) fail_msg("seed %llu: %s", (unsigned long long)seed, l.s.why);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) {
        int64_t total[N_SEEN] = {0};
        char why[512];
        uint64_t seed = strtoull(argv[1], NULL, 10), count = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
        int n_bad = 0;
        for (uint64_t i = 0; i < count; i++)
            if (!run(seed + i, argc == 2, total, why, sizeof why) && n_bad++ < 5)
                printf("seed %llu: %s\n", (unsigned long long)(seed + i), why);
        for (int i = 0; i < N_SEEN; i++) printf("%10lld  %s\n", (long long)total[i], seen_name[i]);
        printf("%d of %llu went wrong\n", n_bad, (unsigned long long)count);
        return n_bad != 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(sequences_end_well),
                                       cmocka_unit_test(whatever_is_said_the_books_are_right)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
