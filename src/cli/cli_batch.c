/* See cli_batch.h. Plain write(2) with O_APPEND: a line is in the system's hands before the next step begins; one fsync
 * at the end. flock keeps two runs from writing one file.
 */
#include "cli/cli_batch.h"

#include "base/json.h"
#include "tensor/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static gy_status io_error(const gy_batch *b, const char *what, gy_err *err) {
    return gy_err_set(err, GY_E_IO, "%s: cannot %s: %s", b->path, what, strerrordesc_np(errno));
}

/* ---- what the answers depend on besides the request ---- */

enum { SAMPLE_BYTES = 64 };

static uint64_t hash_tensor(uint64_t h, const gy_tensor_info *t) {
    size_t n = t->bytes < SAMPLE_BYTES ? t->bytes : SAMPLE_BYTES;
    h = gy_hash_bytes(h, t->name, strlen(t->name));
    h = gy_hash_bytes(h, t->shape, (size_t)t->n_dim * sizeof *t->shape);
    h = gy_hash_bytes(h, t->data, n);
    return gy_hash_bytes(h, (const char *)t->data + (t->bytes - n), n);
}

gy_status gy_batch_seed(const gy_cli_model *m, const gy_args *a, gy_err *err, uint64_t *out) {
    gy_st *st = NULL;
    int32_t numbers[] = {m->d.n_vocab, m->d.n_embd, m->d.n_loop, (int32_t)m->act, (int32_t)m->form, m->quant_head};
    uint64_t h = gy_hash_bytes(0, m->d.family, strlen(m->d.family));
    h = gy_hash_bytes(h, numbers, sizeof numbers);
    h = gy_hash_bytes(h, a->kv_layout, strlen(a->kv_layout));
    if (!strcmp(a->kv_dtype, "int8")) h = gy_hash_bytes(h, a->kv_dtype, strlen(a->kv_dtype));
    GY_TRY(gy_st_open(m->dir, err, &st));
    for (size_t i = 0; i < gy_st_count(st); i++) h = hash_tensor(h, gy_st_at(st, i));
    gy_st_close(st);
    *out = h;
    return GY_OK;
}

static const char *hash_text(const gy_batch *b, size_t index, char buf[20]) {
    static const char digits[] = "0123456789abcdef";
    uint64_t h = gy_job_hash(&b->jobs->job.data[index], b->seed);
    for (int i = 0; i < 16; i++) buf[i] = digits[h >> (60 - 4 * i) & 15];
    buf[16] = '\0';
    return buf;
}

/* ---- reading what is there ---- */

typedef struct scan {
    size_t line;    /* from 1 */
    int64_t good;   /* offset behind the last request that is complete */
    int64_t at;     /* offset of the pending bytes */
    gy_str pending; /* read, not yet a line */
    int64_t index;  /* of the request whose choices are being read */
    int32_t choice; /* the next one of it; 0: between requests */
    int errors;     /* a choice of it ended in an error */
} scan;

static gy_status bad_line(const gy_batch *b, const scan *s, gy_err *err, const char *what) {
    return gy_err_set(err, GY_E_ARG, "%s:%zu: %s; name another file, or repeat the command that made this one", b->path,
                      s->line, what);
}

static int same_ids(const gy_jv *v, const gy_vec_i32 *ids) {
    if (gy_jv_type(v) != GY_J_ARRAY || gy_jv_len(v) != ids->len) return 0;
    for (size_t i = 0; i < ids->len; i++)
        if (gy_jv_int(gy_jv_at(v, i), -1) != ids->data[i]) return 0;
    return 1;
}

static gy_status check_line(const gy_batch *b, const scan *s, const gy_jv *v, int64_t index, gy_err *err) {
    char hash[20];
    const gy_job *job = &b->jobs->job.data[index];
    if (s->choice ? index != s->index : b->done[index])
        return bad_line(b, s, err,
                        s->choice ? "a choice of the request before it is missing" : "this index is answered twice");
    if (gy_jv_int(gy_jv_get(v, "choice"), 0) != s->choice) return bad_line(b, s, err, "choices are not in their order");
    if (!same_ids(gy_jv_get(v, "prompt_ids"), &job->ids))
        return gy_err_set(err, GY_E_ARG,
                          "%s:%zu: the prompt_ids of index %lld are not those of %s; name another file, or repeat the "
                          "command that made this one",
                          b->path, s->line, (long long)index, job->source);
    if (!gy_jv_is_str(gy_jv_get(v, "request"), hash_text(b, (size_t)index, hash)))
        return bad_line(b, s, err,
                        "this answer was made with other options or another model than its prompt asks for now");
    return GY_OK;
}

static gy_status scan_answer(gy_batch *b, scan *s, const gy_jv *v, gy_err *err) {
    int64_t index = gy_jv_int(gy_jv_get(v, "index"), -1);
    if (index < 0 || (uint64_t)index >= b->jobs->job.len)
        return gy_err_set(err, GY_E_ARG,
                          "%s:%zu: found no \"index\" from 0 to %zu: this is no output of these prompts; name another "
                          "file",
                          b->path, s->line, b->jobs->job.len - 1);
    GY_TRY(check_line(b, s, v, index, err));
    s->errors |= gy_jv_is_str(gy_jv_get(v, "finish_reason"), "error");
    s->index = index;
    if (++s->choice < b->jobs->job.data[index].opt.n) return GY_OK;
    b->done[index] = 1;
    b->n_done++;
    b->n_error += s->errors != 0;
    s->choice = s->errors = 0;
    return GY_OK;
}

static gy_status scan_line(gy_batch *b, scan *s, const char *line, size_t len, gy_err *err) {
    static const gy_json_limits limits = {.max_bytes = (size_t)1 << 30};
    gy_json *doc = NULL;
    s->line++;
    if (gy_json_parse(line, len, &limits, err, &doc) < 0) {
        if (err->status == GY_E_NOMEM) return err->status;
        return bad_line(b, s, err, "this is no JSON");
    }
    gy_status st = scan_answer(b, s, gy_json_root(doc), err);
    gy_json_free(doc);
    if (st >= 0 && s->choice == 0) s->good = s->at + (int64_t)len + 1;
    return st;
}

/* All whole lines of what is pending. */
static gy_status scan_pending(gy_batch *b, scan *s, gy_err *err) {
    size_t from = 0, base = s->pending.len;
    char *text = s->pending.data;
    const char *nl;
    int64_t at = s->at;
    if (!text) return GY_OK;
    while ((nl = memchr(text + from, '\n', base - from))) {
        size_t len = (size_t)(nl - text) - from;
        s->at = at + (int64_t)from;
        GY_TRY(scan_line(b, s, text + from, len, err));
        from += len + 1;
    }
    memmove(text, text + from, base - from);
    s->pending.len = base - from;
    s->at = at + (int64_t)from;
    return GY_OK;
}

/* Is this how a line of ours begins? What does not is not ours to remove. */
static int tail_is_ours(const gy_batch *b, const char *tail, size_t len) {
    static const char begin[] = "{\"index\":";
    size_t n = sizeof begin - 1, index = 0;
    if (memcmp(tail, begin, len < n ? len : n) != 0) return 0;
    for (; n < len && tail[n] >= '0' && tail[n] <= '9' && index <= b->jobs->job.len; n++)
        index = index * 10 + (size_t)(tail[n] - '0');
    if (n >= len) return 1;
    if (index >= b->jobs->job.len) return 0;
    gy_str head = {0};
    gy_answer_put_head(&b->jobs->job.data[index], index, &head);
    int same = !head.failed && !memcmp(gy_str_z(&head), tail, len < head.len ? len : head.len);
    gy_str_free(&head);
    return same;
}

static gy_status cut_tail(gy_batch *b, scan *s, gy_err *err) {
    int64_t end = s->at + (int64_t)s->pending.len;
    if (end == s->good) return GY_OK;
    s->line++;
    if (s->pending.len && !tail_is_ours(b, gy_str_z(&s->pending), s->pending.len))
        return bad_line(b, s, err, "this is not the beginning of an answer to these prompts");
    if (ftruncate(b->fd, (off_t)s->good)) return io_error(b, "cut off its incomplete end", err);
    b->cut = end - s->good;
    return GY_OK;
}

static gy_status scan_file(gy_batch *b, scan *s, gy_err *err) {
    char *buf = gy_mem_alloc(GY_MEM_CLI, 1 << 20, 1);
    gy_status st = buf ? GY_OK : gy_err_set(err, GY_E_NOMEM, "no memory to read %s", b->path);
    ssize_t n = 1;
    while (st == GY_OK && n > 0) {
        n = read(b->fd, buf, 1 << 20);
        if (n < 0) st = io_error(b, "read it", err);
        if (n > 0) gy_str_append(&s->pending, buf, (size_t)n);
        if (s->pending.failed) st = gy_err_set(err, GY_E_NOMEM, "no memory to read %s", b->path);
        if (st == GY_OK) st = scan_pending(b, s, err);
    }
    gy_mem_free(buf);
    return st == GY_OK ? cut_tail(b, s, err) : st;
}

/* ---- open, write, close ---- */

static gy_status open_file(gy_batch *b, gy_err *err) {
    struct stat st;
    b->fd = open(b->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (b->fd < 0) return io_error(b, "open it to write", err);
    if (fstat(b->fd, &st)) return io_error(b, "look at it", err);
    if (!S_ISREG(st.st_mode))
        return gy_err_set(err, GY_E_ARG,
                          "--output: %s is no regular file; leave --output away to write to standard output", b->path);
    if (flock(b->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return gy_err_set(err, GY_E_IO, "%s: another process is writing to it", b->path);
    return GY_OK;
}

gy_status gy_batch_open(gy_batch *b, const char *path, const gy_jobs *j, uint64_t seed, gy_err *err) {
    *b = (gy_batch){.path = path, .fd = -1, .jobs = j, .seed = seed};
    scan s = {0};
    b->done = gy_arena_alloc(j->arena, j->job.len, 1);
    if (!b->done) return gy_err_set(err, GY_E_NOMEM, "no memory for %zu prompts", j->job.len);
    gy_status st = open_file(b, err);
    if (st == GY_OK) st = scan_file(b, &s, err);
    gy_str_free(&s.pending);
    if (st < 0 && b->fd >= 0) {
        close(b->fd);
        b->fd = -1;
    }
    return st;
}

static gy_status write_all(gy_batch *b, gy_err *err) {
    size_t done = 0;
    while (done < b->line.len) {
        ssize_t n = write(b->fd, b->line.data + done, b->line.len - done);
        if (n < 0 && errno != EINTR) return io_error(b, "write to it", err);
        if (n > 0) done += (size_t)n;
    }
    return GY_OK;
}

gy_status gy_batch_write(gy_batch *b, const gy_answer *a, gy_err *err) {
    char hash[20];
    gy_str_clear(&b->line);
    gy_answer_put_json(a, hash_text(b, a->index, hash), &b->line);
    if (b->line.failed) return gy_err_set(err, GY_E_NOMEM, "no memory for the output");
    GY_TRY(write_all(b, err));
    b->done[a->index] = 1;
    b->n_done++;
    b->n_error += gy_answer_error(a) != NULL;
    return GY_OK;
}

gy_status gy_batch_close(gy_batch *b, gy_err *err) {
    gy_status st = GY_OK;
    gy_str_free(&b->line);
    if (b->fd < 0) return GY_OK;
    if (fsync(b->fd)) st = io_error(b, "write it to the disk", err);
    if (close(b->fd) && st == GY_OK) st = io_error(b, "close it", err);
    b->fd = -1;
    return st;
}

/* ---- paths ---- */

static int same_file(const char *path, const struct stat *out) {
    struct stat in;
    int rc = strcmp(path, "-") ? stat(path, &in) : fstat(STDIN_FILENO, &in);
    return rc == 0 && in.st_dev == out->st_dev && in.st_ino == out->st_ino;
}

gy_status gy_batch_check_path(const char *path, const gy_args *a, gy_err *err) {
    struct stat out;
    if (!path[0] || !strcmp(path, "-"))
        return gy_err_set(err, GY_E_ARG,
                          "--output: found '%s', expected a file; without --output, lines go to standard output", path);
    if (stat(path, &out)) return GY_OK;
    for (size_t i = 0; i < a->prompts.n; i++)
        if (!strcmp(a->prompts.items[i].opt->name, "input") && same_file(a->prompts.items[i].text, &out))
            return gy_err_set(err, GY_E_ARG, "--output: %s is the file that the prompts come from", path);
    return GY_OK;
}
