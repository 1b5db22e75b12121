/* The writer of one safetensors file (gyre synth, tests). Data go to path + ".tmp" through one buffer and the file is
 * renamed into place when all of them came, so a reader never sees half a checkpoint. No fsync: what it guards against
 * is a killed process, not a power cut; a synthetic checkpoint can be made again.
 *
 * The data section begins on a multiple of 8. Tensors follow each other without gaps in the caller's order; an order
 * that would put one off its element size is refused (put wider types first).
 */
#include "base/json.h"
#include "tensor/st_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20 };

struct gy_st_writer {
    char *path, *tmp;
    char *buf;
    size_t buf_len;
    int fd;
    gy_status failed;   /* the first failure: the temporary file is gone and nothing more is written */
    size_t data_bytes;  /* what the header promises */
    size_t data_done;   /* what put has taken */
    size_t total_bytes; /* of the whole file */
};

/* ---- the header ------------------------------------------------------------------------------------------------- */

static gy_status entry_check(const char *path, const gy_st_entry *e, size_t at, size_t *bytes_out, gy_err *err) {
    char shape[192];
    GY_TRY(gy_st_check_name(path, "tensor", e->name, strlen(e->name), err));
    if (!strcmp(e->name, "__metadata__") || !gy_utf8_valid(e->name, strlen(e->name)))
        return gy_err_set(err, GY_E_ARG, "%s: a tensor is named \"%s\", expected UTF-8 other than __metadata__", path,
                          e->name);
    if ((unsigned)e->dtype >= GY_DTYPE_COUNT || e->n_dim < 0 || e->n_dim > GY_MAX_DIM)
        return gy_err_set(err, GY_E_ARG,
                          "%s: tensor \"%s\": dtype %d with %d dimensions, expected a known dtype and "
                          "at most %d dimensions",
                          path, e->name, (int)e->dtype, e->n_dim, GY_MAX_DIM);
    if (gy_st_tensor_bytes(e->dtype, e->shape, e->n_dim, bytes_out))
        return gy_err_set(err, GY_E_ARG, "%s: tensor \"%s\": shape %s is negative or too large", path, e->name,
                          gy_st_shape_text(e->shape, e->n_dim, shape));
    if (at % gy_dtype_bytes(e->dtype) != 0)
        return gy_err_set(err, GY_E_ARG,
                          "%s: tensor \"%s\" of %s would be misaligned at byte %zu of the data: put wider types first",
                          path, e->name, gy_dtype_name(e->dtype), at);
    return GY_OK;
}

static int name_cmp(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static gy_status entries_check_unique(const char *path, const gy_st_entry *entries, size_t n, gy_err *err) {
    const char **names = gy_mem_alloc(GY_MEM_TENSOR, n, sizeof *names);
    if (!names) return gy_err_set(err, GY_E_NOMEM, "%s: no memory for %zu names", path, n);
    for (size_t i = 0; i < n; i++) names[i] = entries[i].name;
    qsort(names, n, sizeof *names, name_cmp);
    gy_status s = GY_OK;
    for (size_t i = 1; i < n && s == GY_OK; i++)
        if (!strcmp(names[i - 1], names[i]))
            s = gy_err_set(err, GY_E_ARG, "%s: tensor \"%s\" is there twice", path, names[i]);
    gy_mem_free(names);
    return s;
}

static void entry_write(gy_jw *w, const gy_st_entry *e, size_t begin, size_t end) {
    gy_jw_key(w, e->name);
    gy_jw_obj_begin(w);
    gy_jw_key(w, "dtype");
    gy_jw_strz(w, gy_dtype_name(e->dtype));
    gy_jw_key(w, "shape");
    gy_jw_arr_begin(w);
    for (int i = 0; i < e->n_dim; i++) gy_jw_int(w, e->shape[i]);
    gy_jw_arr_end(w);
    gy_jw_key(w, "data_offsets");
    gy_jw_arr_begin(w);
    gy_jw_int(w, (int64_t)begin);
    gy_jw_int(w, (int64_t)end);
    gy_jw_arr_end(w);
    gy_jw_obj_end(w);
}

/* Appends length, JSON and padding to out; *data_bytes_out is what the header promises to follow. The metadata is the
 * one field that Hugging Face's loader insists on. */
static gy_status header_build(const char *path, const gy_st_entry *entries, size_t n, gy_str *out,
                              size_t *data_bytes_out, gy_err *err) {
    gy_jw w;
    size_t at = 0;
    gy_str_append(out, "\0\0\0\0\0\0\0", 8);
    gy_jw_init(&w, out);
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, "__metadata__");
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, "format");
    gy_jw_strz(&w, "pt");
    gy_jw_obj_end(&w);
    for (size_t i = 0; i < n; i++) {
        size_t bytes, end;
        GY_TRY(entry_check(path, &entries[i], at, &bytes, err));
        if (gy_size_add(at, bytes, &end) || end > INT64_MAX / 2)
            return gy_err_set(err, GY_E_ARG, "%s: the tensors up to \"%s\" are too large for one file", path,
                              entries[i].name);
        entry_write(&w, &entries[i], at, end);
        at = end;
    }
    gy_jw_obj_end(&w);
    while (!out->failed && out->len % 8 != 0) gy_str_putc(out, ' ');
    if (out->failed) return gy_err_set(err, GY_E_NOMEM, "%s: no memory for the header", path);
    if (out->len - 8 >= GY_ST_MAX_HEADER)
        return gy_err_set(err, GY_E_ARG, "%s: the header would have %zu bytes, expected less than %d", path,
                          out->len - 8, GY_ST_MAX_HEADER);
    for (int i = 0; i < 8; i++) out->data[i] = (char)((uint64_t)(out->len - 8) >> (8 * i));
    *data_bytes_out = at;
    return GY_OK;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static void writer_free(gy_st_writer *w) {
    if (w->fd >= 0) close(w->fd);
    gy_mem_free(w->path);
    gy_mem_free(w->tmp);
    gy_mem_free(w->buf);
    gy_mem_free(w);
}

/* Gives the disk space back at once, not when the caller gets round to it. */
static gy_status writer_fail(gy_st_writer *w, int code, gy_err *err) {
    unlink(w->tmp);
    w->failed = GY_E_IO;
    if (code == ENOSPC || code == EDQUOT)
        return gy_err_set(err, GY_E_IO,
                          "%s: %s: the file needs %zu bytes: free that much or choose another folder (the partial file "
                          "was removed)",
                          w->path, code == ENOSPC ? "no space left on the disk" : "the disk quota is used up",
                          w->total_bytes);
    return gy_err_set(err, GY_E_IO, "%s: cannot write: %s (the partial file was removed)", w->path,
                      strerrordesc_np(code));
}

static gy_status writer_write(gy_st_writer *w, const char *data, size_t n, gy_err *err) {
    while (n > 0) {
        const ssize_t k = write(w->fd, data, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return writer_fail(w, k < 0 ? errno : EIO, err);
        data += k;
        n -= (size_t)k;
    }
    return GY_OK;
}

static gy_status writer_flush(gy_st_writer *w, gy_err *err) {
    const size_t n = w->buf_len;
    w->buf_len = 0;
    return writer_write(w, w->buf, n, err);
}

/* Large pieces go straight through: a copy into the buffer would cost more than the call. */
static gy_status writer_add(gy_st_writer *w, const char *data, size_t n, gy_err *err) {
    if (n > BUFFER_BYTES - w->buf_len) GY_TRY(writer_flush(w, err));
    if (n >= BUFFER_BYTES) return writer_write(w, data, n, err);
    memcpy(w->buf + w->buf_len, data, n);
    w->buf_len += n;
    return GY_OK;
}

/* Asks for the space now, so that a full disk shows before minutes of work. File systems that cannot say no matter. */
static gy_status writer_create(gy_st_writer *w, const gy_str *header, gy_err *err) {
    w->fd = open(w->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (w->fd < 0)
        return gy_err_set(err, GY_E_IO, "%s: cannot create it: %s: choose a folder that you may write to", w->tmp,
                          strerrordesc_np(errno));
    if (fallocate(w->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)w->total_bytes) != 0 && errno == ENOSPC)
        return writer_fail(w, ENOSPC, err);
    return writer_add(w, header->data, header->len, err);
}

static gy_status writer_open(gy_st_writer *w, const char *path, const gy_str *header, gy_err *err) {
    gy_str tmp = {0};
    gy_str_puts(&tmp, path);
    gy_str_puts(&tmp, ".tmp");
    w->path = gy_mem_strdup(GY_MEM_TENSOR, path);
    w->tmp = tmp.failed ? NULL : gy_mem_strdup(GY_MEM_TENSOR, tmp.data);
    w->buf = gy_mem_alloc(GY_MEM_TENSOR, BUFFER_BYTES, 1);
    gy_str_free(&tmp);
    if (!w->path || !w->tmp || !w->buf) return gy_err_set(err, GY_E_NOMEM, "%s: no memory for the writer", path);
    return writer_create(w, header, err);
}

gy_status gy_st_writer_open(const char *path, const gy_st_entry *entries, size_t n, gy_err *err, gy_st_writer **out) {
    gy_str header = {0};
    size_t data_bytes = 0;
    gy_st_writer *w = NULL;
    gy_status s = n > 0 ? entries_check_unique(path, entries, n, err)
                        : gy_err_set(err, GY_E_ARG, "%s: no tensor to write, expected at least one", path);
    if (s == GY_OK) s = header_build(path, entries, n, &header, &data_bytes, err);
    if (s == GY_OK && !(w = gy_mem_alloc(GY_MEM_TENSOR, 1, sizeof *w)))
        s = gy_err_set(err, GY_E_NOMEM, "%s: no memory for the writer", path);
    if (s == GY_OK) {
        w->fd = -1;
        w->data_bytes = data_bytes;
        w->total_bytes = header.len + data_bytes;
        s = writer_open(w, path, &header, err);
        if (s == GY_OK)
            *out = w;
        else
            writer_free(w);
    }
    gy_str_free(&header);
    return s;
}

gy_status gy_st_writer_put(gy_st_writer *w, const void *data, size_t bytes, gy_err *err) {
    if (w->failed) return gy_err_set(err, w->failed, "%s: an earlier write failed: start again", w->path);
    if (bytes > w->data_bytes - w->data_done)
        return gy_err_set(err, GY_E_ARG, "%s: more data than the header names: found %zu bytes, expected %zu", w->path,
                          w->data_done + bytes, w->data_bytes);
    w->data_done += bytes;
    return bytes ? writer_add(w, data, bytes, err) : GY_OK;
}

static gy_status writer_finish(gy_st_writer *w, gy_err *err) {
    if (w->failed) return gy_err_set(err, w->failed, "%s: an earlier write failed: start again", w->path);
    if (w->data_done != w->data_bytes) {
        unlink(w->tmp);
        return gy_err_set(err, GY_E_ARG, "%s: data are missing: found %zu bytes, expected %zu", w->path, w->data_done,
                          w->data_bytes);
    }
    GY_TRY(writer_flush(w, err));
    const int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0) return writer_fail(w, errno, err); /* network file systems say so only here */
    if (rename(w->tmp, w->path) != 0) return writer_fail(w, errno, err);
    return GY_OK;
}

gy_status gy_st_writer_close(gy_st_writer *w, gy_err *err) {
    const gy_status s = writer_finish(w, err);
    writer_free(w);
    return s;
}

void gy_st_writer_abort(gy_st_writer *w) {
    if (!w) return;
    if (!w->failed) unlink(w->tmp);
    writer_free(w);
}
