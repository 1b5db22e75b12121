/* The made-up GPU: see machine.h. */
#include "machine.h"

#include <csetjmp>
#include <cstdio>
#include <ucontext.h>

enum { LANES = 32, STACK = 96 << 10, MEETINGS = 4, IDLE_PICKS = 4000 };

typedef enum lane_state { READY, SPINNING, AT_WARP, AT_MEETING, ENDED } lane_state;
typedef enum warp_op { OP_NONE, OP_SYNC, OP_SHUFFLE, OP_ALL, OP_LOAD, OP_LOAD_TRANS, OP_MULTIPLY } warp_op;

typedef struct pending_copy {
    uint32_t to;
    const void *from;
    int valid;
} pending_copy;

typedef struct lane {
    ucontext_t context; /* where it begins; from then on jump, which saves no signals and so calls nobody */
    jmp_buf jump;
    int has_begun;
    std::unique_ptr<char[]> stack;
    emu_ids ids;
    lane_state state;
    const void *arg; /* of the warp's instruction */
    std::vector<pending_copy> copies;
} lane;

typedef struct warp {
    int block, arrived;
    warp_op op;
    int speed; /* taken when drawn once in so many times */
    lane lanes[LANES];
} warp;

typedef struct bar_state {
    int64_t phase, pending, bytes;
} bar_state;

typedef struct block {
    std::unique_ptr<char[]> raw;
    char *smem;
    int met[MEETINGS];
    std::map<uint32_t, bar_state> bars;
} block;

typedef struct arrival { /* what will happen some time */
    std::function<void()> happens;
    const void *at; /* those at one place happen in order */
} arrival;

typedef struct machine {
    jmp_buf home;
    std::vector<std::unique_ptr<warp>> warps;
    std::vector<std::unique_ptr<block>> blocks;
    std::vector<arrival> arrivals;
    void (*body)(const void *);
    const void *arg;
    size_t smem;
    int threads;
    uint64_t random, clock, work;
    warp *w; /* who runs */
    lane *l;
    const char *fault;
} machine;
static machine *m;

static uint32_t draw(uint32_t n) {
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((m->random >> 33) % n);
}
static void fault(const char *what) {
    if (!m->fault) m->fault = what;
}
static block *here(void) {
    return m->blocks[(size_t)m->w->block].get();
}

/* ---- fibers ------------------------------------------------------------------------------------------------------ */

static void leave(lane_state state) {
    lane *l = m->l;
    l->state = state;
    if (!_setjmp(l->jump)) _longjmp(m->home, 1);
}

static void lane_main(void) {
    m->body(m->arg);
    m->work++;
    leave(ENDED);
}

const emu_ids &emu_self(void) {
    return m->l->ids;
}

static void resume(warp *w, lane *l) {
    m->w = w;
    m->l = l;
    l->state = READY;
    if (_setjmp(m->home)) return;
    if (l->has_begun) _longjmp(l->jump, 1);
    l->has_begun = 1;
    setcontext(&l->context);
}

/* ---- together ---------------------------------------------------------------------------------------------------- */

static const uint16_t *row_of(uint32_t at) {
    return (const uint16_t *)(here()->smem + at);
}
typedef struct load_arg {
    uint32_t *r, at;
} load_arg;
typedef struct multiply_arg {
    float *d;
    const uint32_t *a;
    uint32_t b0, b1;
} multiply_arg;
typedef struct shuffle_arg {
    uint64_t in, out;
    int from;
} shuffle_arg;

static void do_shuffle(warp *w) {
    for (auto &l : w->lanes) {
        shuffle_arg *a = (shuffle_arg *)l.arg;
        a->out = ((const shuffle_arg *)w->lanes[a->from % LANES].arg)->in;
    }
}

/* Lane i says where row i % 8 of matrix i / 8 lies. */
static void do_load(warp *w, int is_trans) {
    for (int i = 0; i < LANES; i++)
        for (int k = 0; k < 4; k++) {
            const load_arg *to = (const load_arg *)w->lanes[i].arg;
            uint32_t two[2];
            for (int e = 0; e < 2; e++) {
                int row = is_trans ? i % 4 * 2 + e : i / 4, column = is_trans ? i / 4 : i % 4 * 2 + e;
                uint32_t at = ((const load_arg *)w->lanes[k * 8 + row].arg)->at;
                if (at % 16) fault("a matrix row that is not aligned");
                two[e] = row_of(at)[column];
            }
            to->r[k] = two[0] | two[1] << 16;
        }
}

static float bf16_of(uint32_t word, int upper) {
    return __uint_as_float(upper ? word & 0xffff0000u : word << 16);
}
/* m16n8k16: fragments as PTX lays them out. */
static void do_multiply(warp *w) {
    float a[16][16], b[16][8];
    for (int i = 0; i < LANES; i++) {
        const multiply_arg *x = (const multiply_arg *)w->lanes[i].arg;
        int g = i / 4, c = i % 4;
        for (int e = 0; e < 2; e++) {
            for (int h = 0; h < 4; h++) a[g + h % 2 * 8][h / 2 * 8 + 2 * c + e] = bf16_of(x->a[h], e);
            b[2 * c + e][g] = bf16_of(x->b0, e);
            b[8 + 2 * c + e][g] = bf16_of(x->b1, e);
        }
    }
    for (int i = 0; i < LANES; i++) {
        const multiply_arg *x = (const multiply_arg *)w->lanes[i].arg;
        for (int e = 0; e < 4; e++)
            for (int k = 0; k < 16; k++) x->d[e] = fmaf(a[i / 4 + e / 2 * 8][k], b[k][i % 4 * 2 + e % 2], x->d[e]);
    }
}

static void do_all(warp *w) {
    uint64_t all = 1;
    for (auto &l : w->lanes) all &= ((const shuffle_arg *)l.arg)->in;
    for (auto &l : w->lanes) ((shuffle_arg *)l.arg)->out = all;
}

static void perform(warp *w) {
    if (w->op == OP_ALL) do_all(w);
    if (w->op == OP_SHUFFLE) do_shuffle(w);
    if (w->op == OP_LOAD) do_load(w, 0);
    if (w->op == OP_LOAD_TRANS) do_load(w, 1);
    if (w->op == OP_MULTIPLY) do_multiply(w);
}

static void together(warp_op op, const void *arg) {
    warp *w = m->w;
    if (w->arrived && w->op != op) fault("lanes of a warp at different instructions");
    w->op = op;
    m->l->arg = arg;
    if (++w->arrived < LANES) {
        leave(AT_WARP);
        return;
    }
    perform(w);
    w->arrived = 0;
    m->work++;
    for (auto &l : w->lanes)
        if (l.state == AT_WARP) l.state = READY;
}

uint64_t emu_shuffle(uint64_t v, int from) {
    shuffle_arg a = {v, 0, from};
    together(OP_SHUFFLE, &a);
    return a.out;
}
int emu_all(int v) {
    shuffle_arg a = {v != 0, 0, 0};
    together(OP_ALL, &a);
    return (int)a.out;
}
void emu_sync_warp(void) {
    together(OP_SYNC, NULL);
}
void ldmatrix4(uint32_t r[4], uint32_t at) {
    load_arg a = {r, at};
    together(OP_LOAD, &a);
}
void ldmatrix4_trans(uint32_t r[4], uint32_t at) {
    load_arg a = {r, at};
    together(OP_LOAD_TRANS, &a);
}
void mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    multiply_arg x = {d, a, b0, b1};
    together(OP_MULTIPLY, &x);
}

void hw_load_some(uint32_t v[4], uint32_t at, int has) {
    if (at % 16) fault("four words that are not aligned");
    if (has) memcpy(v, here()->smem + at, 16);
}

/* Whole warps. */
void emu_meet(int id, int threads) {
    block *b = here();
    int all = threads ? threads : m->threads;
    emu_sync_warp();
    if (++b->met[id] < all) {
        m->l->arg = b->met + id;
        leave(AT_MEETING);
        return;
    }
    b->met[id] = 0;
    m->work++;
    for (auto &w : m->warps)
        for (auto &l : w->lanes)
            if (l.state == AT_MEETING && l.arg == b->met + id) l.state = READY;
}

/* ---- barriers and what arrives ----------------------------------------------------------------------------------- */

uint32_t emu_smem_address(const void *p) {
    return (uint32_t)((const char *)p - here()->smem);
}
char *hw_smem(void) {
    return here()->smem;
}

static void later(const void *at, std::function<void()> happens) {
    m->arrivals.push_back({std::move(happens), at});
}

static bar_state *bar_of(block *b, uint32_t bar) {
    auto found = b->bars.find(bar);
    if (found == b->bars.end()) {
        fault("a barrier that was not made");
        return &b->bars[bar];
    }
    return &found->second;
}
static void settle(bar_state *s) {
    if (s->pending < 0) fault("more arrivals at a barrier than a phase has");
    if (s->pending || s->bytes) return;
    s->phase++;
    s->pending = 1;
}
static void arrive(block *b, uint32_t bar, int64_t n, int64_t bytes) {
    bar_state *s = bar_of(b, bar);
    s->pending -= n;
    s->bytes += bytes;
    settle(s);
    m->work++;
}

void hw_bar_init(uint32_t bar) {
    here()->bars[bar] = {0, 1, 0};
}
void hw_bar_arrive(uint32_t bar) {
    arrive(here(), bar, 1, 0);
}
void hw_bar_expect(uint32_t bar, uint32_t bytes) {
    arrive(here(), bar, 1, bytes);
}
static int is_over(uint32_t bar, uint32_t parity) {
    return (bar_of(here(), bar)->phase & 1) != (int64_t)parity;
}
int hw_bar_test(uint32_t bar, uint32_t parity) {
    int over = is_over(bar, parity);
    if (!over) leave(SPINNING);
    return over;
}
int hw_bar_try(uint32_t bar, uint32_t parity) {
    if (!is_over(bar, parity)) leave(SPINNING);
    return is_over(bar, parity);
}

static void land(block *b, const pending_copy &c) {
    if (c.valid)
        memcpy(b->smem + c.to, c.from, 16);
    else
        memset(b->smem + c.to, 0, 16);
}
void copy16(uint32_t to, const void *from, int valid) {
    m->l->copies.push_back({to, from, valid});
}
void hw_bar_copies(uint32_t bar) {
    block *b = here();
    std::vector<pending_copy> all = std::move(m->l->copies);
    m->l->copies.clear();
    bar_of(b, bar)->pending++;
    later(NULL, [b, bar, all]() {
        for (auto &c : all) land(b, c);
        arrive(b, bar, 1, 0);
    });
}

/* Panels of 64 of k, rows of 128 bytes, 16-byte units exclusive-ored by the row's place. */
static void land_panels(block *b, uint32_t to, const CUtensorMap *map, const int32_t row[8], int32_t panel) {
    if (to % 1024) fault("a slot that is not aligned");
    for (int p = 0; p < 8; p++)
        for (int r = 0; r < 8; r++)
            for (int u = 0; u < 8; u++) {
                uint32_t at = to + (uint32_t)(p * 1024 + r * 128 + u * 16);
                int32_t k = (panel + p) * 64 + u * 8;
                char *dst = b->smem + (at ^ ((at >> 7 & 7) << 4));
                if (k < map->k && row[r] < map->n)
                    memcpy(dst, map->w + (size_t)row[r] * (size_t)map->k + k, 16);
                else
                    memset(dst, 0, 16);
            }
}
static void bring(uint32_t to, const CUtensorMap *map, const int32_t row[8], int32_t panel, uint32_t bar) {
    block *b = here();
    std::vector<int32_t> rows(row, row + 8);
    later(NULL, [=]() {
        land_panels(b, to, map, rows.data(), panel);
        arrive(b, bar, 0, -8192);
    });
}
void hw_bring_rows(uint32_t to, const CUtensorMap *map, int32_t row, int32_t panel, uint32_t bar) {
    int32_t rows[8];
    if (map->is_units) fault("rows of a map of units");
    for (int i = 0; i < 8; i++) rows[i] = row + i;
    bring(to, map, rows, panel, bar);
}
void hw_bring_unit(uint32_t to, const CUtensorMap *map, int32_t unit, int32_t panel, uint32_t bar) {
    int32_t rows[8];
    if (!map->is_units) fault("units of a map of rows");
    for (int i = 0; i < 8; i++) rows[i] = unit * 4 + i % 4 + i / 4 * (map->n / 2);
    bring(to, map, rows, panel, bar);
}
void hw_bring_bytes(uint32_t to, const void *from, uint32_t bytes, uint32_t bar) {
    block *b = here();
    later(NULL, [=]() {
        memcpy(b->smem + to, from, bytes);
        arrive(b, bar, 0, -(int64_t)bytes);
    });
}

void hw_put_word(uint64_t *to, uint64_t word) {
    later(to, [=]() { *to = word; });
}
static uint64_t look(const uint64_t *from) {
    return *(const volatile uint64_t *)from;
}
uint64_t hw_get_word(const uint64_t *from) {
    leave(SPINNING);
    return look(from);
}
void hw_get_words(const uint64_t *from, uint64_t w[2]) {
    if ((uintptr_t)from % 16) fault("two words that are not aligned");
    leave(SPINNING);
    w[0] = look(from);
    if (!draw(4)) leave(SPINNING);
    w[1] = look(from + 1);
}
void hw_count(uint32_t *counter) {
    later(NULL, [=]() { ++*counter; });
}
uint32_t hw_counted(const uint32_t *counter) {
    leave(SPINNING);
    return *(const volatile uint32_t *)counter;
}
long long hw_clock(void) {
    return (long long)++m->clock;
}
void hw_stop(void) {
    fault("a wait was given up");
    for (;;) leave(ENDED);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void add_lane(lane *l, emu_ids ids) {
    l->ids = ids;
    l->stack.reset(new char[STACK]);
    getcontext(&l->context);
    l->context.uc_stack.ss_sp = l->stack.get();
    l->context.uc_stack.ss_size = STACK;
    l->context.uc_link = NULL;
    makecontext(&l->context, lane_main, 0);
}

static void add_block(int i, int blocks) {
    auto b = std::make_unique<block>();
    b->raw.reset(new char[m->smem + 1024]);
    b->smem = (char *)(((uintptr_t)b->raw.get() + 1023) / 1024 * 1024);
    memset(b->smem, 0xff, m->smem); /* NaN: what nobody wrote */
    memset(b->met, 0, sizeof b->met);
    m->blocks.push_back(std::move(b));
    for (int k = 0; k < m->threads / LANES; k++) {
        auto w = std::make_unique<warp>();
        w->block = i;
        w->speed = draw(8) ? 1 : 1 + (int)draw(40);
        for (int j = 0; j < LANES; j++)
            add_lane(&w->lanes[j], {{(unsigned)(k * LANES + j), 0, 0}, {(unsigned)i, 0, 0}, {(unsigned)blocks, 1, 1}});
        m->warps.push_back(std::move(w));
    }
}

/* Whether it has lanes that could go on. */
static int run_warp(warp *w) {
    int ran = 0, first = (int)draw(LANES);
    for (int i = 0; i < LANES && !m->fault; i++) {
        lane *l = &w->lanes[(first + i) % LANES];
        if (l->state != READY && l->state != SPINNING) continue;
        resume(w, l);
        ran = 1;
    }
    return ran;
}

static void let_happen(void) {
    if (m->arrivals.empty()) return;
    size_t i = draw((uint32_t)m->arrivals.size());
    for (size_t k = 0; k < i && m->arrivals[i].at; k++)
        if (m->arrivals[k].at == m->arrivals[i].at) i = k;
    arrival a = std::move(m->arrivals[i]);
    m->arrivals.erase(m->arrivals.begin() + (ptrdiff_t)i);
    a.happens();
    m->work++;
}

static void run_all(uint32_t often) {
    std::vector<warp *> alive;
    uint64_t worked = m->work;
    for (auto &w : m->warps) alive.push_back(w.get());
    for (uint64_t idle = 0; !alive.empty() && !m->fault;) {
        size_t i = draw((uint32_t)alive.size());
        warp *w = alive[i];
        if (w->speed == 1 || !draw((uint32_t)w->speed)) run_warp(w);
        for (uint32_t k = 0; k < often; k++) let_happen();
        if (!often && !draw(6)) let_happen();
        int ended = 0;
        for (auto &l : w->lanes) ended += l.state == ENDED;
        if (ended == LANES) {
            alive[i] = alive.back();
            alive.pop_back();
        }
        idle = m->work == worked ? idle + 1 : 0;
        worked = m->work;
        if (idle > IDLE_PICKS * m->warps.size()) fault("deadlock");
    }
    while (!m->arrivals.empty() && !m->fault) let_happen();
}

int emu_run(int blocks, int threads, size_t smem, void (*body)(const void *arg), const void *arg, uint64_t seed,
            char said[256]) {
    machine all = {};
    m = &all;
    all.body = body;
    all.arg = arg;
    all.smem = smem;
    all.threads = threads;
    all.random = seed * 0x9E3779B97F4A7C15u + 1;
    for (int i = 0; i < blocks; i++) add_block(i, blocks);
    run_all(draw(4));
    if (all.fault)
        snprintf(said, 256, "%s (block %d, warp %d)", all.fault, m->w->block, (int)(m->l->ids.thread.x / LANES));
    m = NULL;
    return all.fault != NULL;
}
