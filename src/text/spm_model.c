/* Reads a tokenizer.model: ModelProto of sentencepiece_model.proto (field numbers below are that file's), checks it the
 * way the library does and builds the look-up structures. What would change the ids and is not honoured is refused by
 * name: word and char models, denormalisation rules. Fields that only steer training are skipped.
 */
#include "text/spm_int.h"
#include "text/spm_proto.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_PIECE_BYTES 8000 /* sentencepiece's own bound */

typedef struct model_reader {
    gy_spm *m;
    const char *name;
    gy_err *err;
    gy_str charsmap;
    int denormalizes;
    int cap_piece;
} model_reader;

static gy_status model_bad(const model_reader *r, const char *what) {
    return gy_err_set(r->err, GY_E_FORMAT, "%s: %s", r->name, what);
}

static gy_status field_expect(const model_reader *r, const gy_pb_field *f, const char *name, gy_pb_wire wire) {
    if (f->wire == wire) return GY_OK;
    return gy_err_set(r->err, GY_E_FORMAT, "%s: %s: found %s, expected %s: the file is damaged, fetch it again",
                      r->name, name, gy_pb_wire_name(f->wire), gy_pb_wire_name(wire));
}

static gy_status field_flag(const model_reader *r, const gy_pb_field *f, const char *name, int *out) {
    GY_TRY(field_expect(r, f, name, GY_PB_VARINT));
    *out = f->value != 0;
    return GY_OK;
}

/* Text that ends up in what is decoded: it must be UTF-8, and the last one of several counts. */
static gy_status field_text(const model_reader *r, const gy_pb_field *f, const char *name, gy_str *out) {
    GY_TRY(field_expect(r, f, name, GY_PB_BYTES));
    if (!gy_utf8_valid(f->data, f->len)) {
        return gy_err_set(r->err, GY_E_FORMAT, "%s: %s is not valid UTF-8", r->name, name);
    }
    gy_str_clear(out);
    gy_str_append(out, f->data, f->len);
    return out->failed ? gy_err_set(r->err, GY_E_NOMEM, "%s: no memory", r->name) : GY_OK;
}

static gy_status malformed(const model_reader *r, const char *message, const gy_pb *pb) {
    return gy_err_set(
        r->err, GY_E_FORMAT,
        "%s: not a SentencePiece model: malformed %s at its byte %zu; expected protobuf (a tokenizer.model "
        "as SentencePiece writes it): fetch the file again",
        r->name, message, gy_pb_offset(pb));
}

/* ---- TrainerSpec ---- */

static gy_status read_algo(model_reader *r, const gy_pb_field *f) {
    static const char *const refused[] = {"", "", "", "word", "char"};
    GY_TRY(field_expect(r, f, "trainer_spec.model_type", GY_PB_VARINT));
    if (f->value == GY_SPM_UNIGRAM || f->value == GY_SPM_BPE) {
        r->m->algo = (gy_spm_algo)f->value;
        return GY_OK;
    }
    if (f->value == GY_SPM_WORD || f->value == GY_SPM_CHAR) {
        return gy_err_set(r->err, GY_E_UNSUPPORTED,
                          "%s: trainer_spec.model_type is %s, which is not supported: only unigram and bpe are",
                          r->name, refused[f->value]);
    }
    return gy_err_set(r->err, GY_E_FORMAT, "%s: trainer_spec.model_type: found %llu, expected 1 (unigram) or 2 (bpe)",
                      r->name, (unsigned long long)f->value);
}

static gy_status read_trainer_field(model_reader *r, const gy_pb_field *f) {
    switch (f->number) {
    case 3:
        return read_algo(r, f);
    case 24:
        return field_flag(r, f, "trainer_spec.treat_whitespace_as_suffix", &r->m->ws_suffix);
    case 35:
        return field_flag(r, f, "trainer_spec.byte_fallback", &r->m->byte_fallback);
    case 44:
        return field_text(r, f, "trainer_spec.unk_surface", &r->m->unk_surface);
    case 45:
        return field_text(r, f, "trainer_spec.unk_piece", &r->m->unk_piece);
    case 46:
        return field_text(r, f, "trainer_spec.bos_piece", &r->m->bos_piece);
    case 47:
        return field_text(r, f, "trainer_spec.eos_piece", &r->m->eos_piece);
    default:
        return GY_OK;
    }
}

/* ---- NormalizerSpec ---- */

static gy_status read_normalizer_field(model_reader *r, const gy_pb_field *f) {
    switch (f->number) {
    case 2:
        GY_TRY(field_expect(r, f, "normalizer_spec.precompiled_charsmap", GY_PB_BYTES));
        gy_str_clear(&r->charsmap);
        gy_str_append(&r->charsmap, f->data, f->len);
        return r->charsmap.failed ? gy_err_set(r->err, GY_E_NOMEM, "%s: no memory", r->name) : GY_OK;
    case 3:
        return field_flag(r, f, "normalizer_spec.add_dummy_prefix", &r->m->add_dummy_prefix);
    case 4:
        return field_flag(r, f, "normalizer_spec.remove_extra_whitespaces", &r->m->remove_extra_ws);
    case 5:
        return field_flag(r, f, "normalizer_spec.escape_whitespaces", &r->m->escape_ws);
    default:
        return GY_OK;
    }
}

static gy_status read_denormalizer_field(model_reader *r, const gy_pb_field *f) {
    if (f->number == 2) r->denormalizes = f->wire == GY_PB_BYTES && f->len > 0;
    return GY_OK;
}

typedef gy_status (*field_reader)(model_reader *r, const gy_pb_field *f);

static gy_status read_message(model_reader *r, const gy_pb_field *outer, const char *name, field_reader read) {
    GY_TRY(field_expect(r, outer, name, GY_PB_BYTES));
    gy_pb pb;
    gy_pb_field f;
    gy_pb_init(&pb, outer->data, outer->len);
    for (;;) {
        int got = gy_pb_next(&pb, &f);
        if (got < 0) return malformed(r, name, &pb);
        if (!got) return GY_OK;
        GY_TRY(read(r, &f));
    }
}

/* ---- pieces ---- */

typedef struct piece_in {
    const char *s;
    size_t len;
    float score;
    uint64_t type;
} piece_in;

static gy_status piece_read(model_reader *r, const gy_pb_field *outer, piece_in *p) {
    *p = (piece_in){"", 0, 0.0f, GY_SPM_NORMAL};
    GY_TRY(field_expect(r, outer, "pieces", GY_PB_BYTES));
    gy_pb pb;
    gy_pb_field f;
    gy_pb_init(&pb, outer->data, outer->len);
    for (;;) {
        int got = gy_pb_next(&pb, &f);
        if (got < 0) return malformed(r, "pieces", &pb);
        if (!got) return GY_OK;
        if (f.number == 1) {
            GY_TRY(field_expect(r, &f, "pieces.piece", GY_PB_BYTES));
            p->s = f.data;
            p->len = f.len;
        } else if (f.number == 2) {
            GY_TRY(field_expect(r, &f, "pieces.score", GY_PB_FIXED32));
            p->score = gy_pb_float(&f);
        } else if (f.number == 3) {
            GY_TRY(field_expect(r, &f, "pieces.type", GY_PB_VARINT));
            p->type = f.value;
        }
    }
}

static int type_is_plain(uint64_t type) {
    return type == GY_SPM_NORMAL || type == GY_SPM_USER_DEFINED || type == GY_SPM_UNUSED;
}

static int piece_is_nul(const piece_in *p) {
    return p->len == 1 && p->s[0] == '\0';
}

static gy_status piece_check(const model_reader *r, const piece_in *p, int32_t id) {
    const char *what = NULL;
    if (p->len == 0) what = "is empty";
    if (p->len >= MAX_PIECE_BYTES) what = "has 8000 bytes or more";
    if (p->len && memchr(p->s, 0, p->len) && !(piece_is_nul(p) && p->type == GY_SPM_UNUSED)) what = "holds a NUL";
    if (!what && !gy_utf8_valid(p->s, p->len)) what = "is not valid UTF-8";
    if (p->type < GY_SPM_NORMAL || p->type > GY_SPM_BYTE) what = "has an unknown type (expected 1 to 6)";
    if (r->m->algo == GY_SPM_UNIGRAM && !isfinite(p->score)) what = "has a score that is not finite";
    if (!what) return GY_OK;
    return gy_err_set(r->err, GY_E_FORMAT, "%s: pieces[%d] %s", r->name, id, what);
}

static int piece_grow(model_reader *r) {
    gy_spm *m = r->m;
    if (m->n_piece < r->cap_piece) return 0;
    int cap = r->cap_piece ? 2 * r->cap_piece : 1024;
    float *score = gy_mem_realloc(GY_MEM_TEXT, m->score, (size_t)cap, sizeof *score);
    if (score) m->score = score;
    uint8_t *type = gy_mem_realloc(GY_MEM_TEXT, m->type, (size_t)cap, 1);
    if (type) m->type = type;
    if (!score || !type) return -1;
    r->cap_piece = cap;
    return 0;
}

static gy_status piece_put(model_reader *r, const piece_in *p, int32_t id) {
    gy_spm *m = r->m;
    int plain = type_is_plain(p->type), refused = 0;
    if (m->algo == GY_SPM_BPE) refused = gy_vocab_get(plain ? &m->reserved : &m->plain, p->s, p->len) >= 0;
    if (!refused) refused = gy_vocab_put(plain ? &m->plain : &m->reserved, p->s, p->len, id);
    if (refused < 0) return gy_err_set(r->err, GY_E_NOMEM, "%s: no memory for the pieces", r->name);
    if (!refused) return GY_OK;
    return gy_err_set(r->err, GY_E_FORMAT, "%s: pieces[%d] \"%.*s\" is there twice", r->name, id, (int)p->len, p->s);
}

static gy_status piece_note(model_reader *r, const piece_in *p, int32_t id) {
    gy_spm *m = r->m;
    if (p->type == GY_SPM_UNUSED) m->n_unused++;
    if (type_is_plain(p->type) && p->len > m->max_plain_len) m->max_plain_len = p->len;
    if (p->type == GY_SPM_UNKNOWN) {
        if (m->unk >= 0)
            return gy_err_set(r->err, GY_E_FORMAT, "%s: pieces[%d] is a second unknown piece, beside [%d]", r->name, id,
                              m->unk);
        m->unk = id;
    }
    return GY_OK;
}

static gy_status read_piece(model_reader *r, const gy_pb_field *f) {
    gy_spm *m = r->m;
    piece_in p;
    GY_TRY(piece_read(r, f, &p));
    /* Converters have left raw NUL pieces beside <0x00>; the library treats them as unused then. */
    if (m->byte_fallback && piece_is_nul(&p)) p.type = GY_SPM_UNUSED;
    GY_TRY(piece_check(r, &p, m->n_piece));
    if (m->n_piece == GY_VOCAB_MAX_ID || piece_grow(r))
        return gy_err_set(r->err, GY_E_NOMEM, "%s: too many pieces for the memory", r->name);
    m->score[m->n_piece] = p.score;
    m->type[m->n_piece] = (uint8_t)p.type;
    int32_t id = m->n_piece++;
    if (piece_is_nul(&p)) return GY_OK;
    GY_TRY(piece_put(r, &p, id));
    return piece_note(r, &p, id);
}

/* ---- the whole ---- */

/* The specs come after the pieces in the file, and pieces are checked by them: two passes. */
static gy_status read_specs(model_reader *r, const gy_pb_field *f) {
    switch (f->number) {
    case 2:
        return read_message(r, f, "trainer_spec", read_trainer_field);
    case 3:
        return read_message(r, f, "normalizer_spec", read_normalizer_field);
    case 5:
        return read_message(r, f, "denormalizer_spec", read_denormalizer_field);
    default:
        return GY_OK;
    }
}

static gy_status read_pieces(model_reader *r, const gy_pb_field *f) {
    return f->number == 1 ? read_piece(r, f) : GY_OK;
}

static gy_status read_all(model_reader *r, const void *data, size_t len, field_reader read) {
    gy_pb pb;
    gy_pb_field f;
    gy_pb_init(&pb, data, len);
    for (;;) {
        int got = gy_pb_next(&pb, &f);
        if (got < 0) return malformed(r, "ModelProto", &pb);
        if (!got) return GY_OK;
        GY_TRY(read(r, &f));
    }
}

static void byte_piece(int byte, char out[8]) {
    snprintf(out, 8, "<0x%02X>", byte & 0xFF);
}

static gy_status check_bytes(const model_reader *r) {
    gy_spm *m = r->m;
    int32_t n_byte = 0;
    for (int32_t i = 0; i < m->n_piece; i++) n_byte += m->type[i] == GY_SPM_BYTE;
    if (!m->byte_fallback && n_byte)
        return model_bad(r, "byte pieces are there although trainer_spec.byte_fallback is false");
    for (int b = 0; m->byte_fallback && b < 256; b++) {
        char piece[8];
        byte_piece(b, piece);
        m->byte_id[b] = gy_vocab_get(&m->reserved, piece, 6);
        if (m->byte_id[b] >= 0 && m->type[m->byte_id[b]] == GY_SPM_BYTE) continue;
        return gy_err_set(r->err, GY_E_FORMAT,
                          "%s: trainer_spec.byte_fallback is true and the byte piece %s is missing", r->name, piece);
    }
    if (m->byte_fallback && n_byte != 256) return model_bad(r, "a byte piece is not one of <0x00> to <0xFF>");
    return GY_OK;
}

static gy_status check_model(const model_reader *r) {
    gy_spm *m = r->m;
    if (!m->n_piece) return model_bad(r, "it has no pieces: this is not a SentencePiece model");
    if (r->denormalizes) {
        return gy_err_set(r->err, GY_E_UNSUPPORTED, "%s: denormalizer_spec.precompiled_charsmap is not supported",
                          r->name);
    }
    GY_TRY(check_bytes(r));
    if (m->unk < 0 && !m->byte_fallback)
        return model_bad(r, "no piece is of type unknown, and there is no byte fallback");
    return GY_OK;
}

/* Keys of the pieces whose type is in the mask 1 << type. */
static int build_trie(const gy_spm *m, unsigned types, gy_spm_trie *out) {
    size_t n = 0;
    for (int32_t i = 0; i < m->n_piece; i++) n += types >> m->type[i] & 1;
    if (!n) return 0;
    gy_spm_key *key = gy_mem_alloc(GY_MEM_TEXT, n, sizeof *key);
    if (!key) return -1;
    n = 0;
    for (int32_t i = 0; i < m->n_piece; i++) {
        if (!(types >> m->type[i] & 1)) continue;
        key[n].s = gy_vocab_piece(&m->plain, i, &key[n].len);
        key[n++].id = i;
    }
    int failed = gy_spm_trie_build(out, key, n);
    gy_mem_free(key);
    return failed;
}

static gy_status build_model(const model_reader *r) {
    gy_spm *m = r->m;
    float lowest = FLT_MAX;
    for (int32_t i = 0; i < m->n_piece; i++) {
        if (m->type[i] == GY_SPM_NORMAL && m->score[i] < lowest) lowest = m->score[i];
    }
    m->unk_score = lowest - 10.0f;
    int failed = build_trie(m, 1u << GY_SPM_USER_DEFINED, &m->user);
    if (!failed && m->algo == GY_SPM_UNIGRAM)
        failed = build_trie(m, 1u << GY_SPM_NORMAL | 1u << GY_SPM_USER_DEFINED, &m->tree);
    return failed ? gy_err_set(r->err, GY_E_NOMEM, "%s: no memory for the pieces", r->name) : GY_OK;
}

static void model_defaults(gy_spm *m) {
    m->algo = GY_SPM_UNIGRAM;
    m->unk = -1;
    m->add_dummy_prefix = m->remove_extra_ws = m->escape_ws = 1;
    gy_str_puts(&m->unk_surface, " \xe2\x81\x87 ");
}

static void name_default(gy_str *s, const char *name) {
    if (!s->len) gy_str_puts(s, name);
}

static gy_status model_load(model_reader *r, const void *data, size_t len) {
    gy_spm *m = r->m;
    model_defaults(m);
    GY_TRY(read_all(r, data, len, read_specs));
    GY_TRY(read_all(r, data, len, read_pieces));
    GY_TRY(check_model(r));
    name_default(&m->unk_piece, "<unk>");
    name_default(&m->bos_piece, "<s>");
    name_default(&m->eos_piece, "</s>");
    if (m->unk_surface.failed || m->unk_piece.failed || m->bos_piece.failed || m->eos_piece.failed) {
        return gy_err_set(r->err, GY_E_NOMEM, "%s: no memory", r->name);
    }
    gy_status st = gy_spm_charsmap_load(&m->map, r->charsmap.data, r->charsmap.len, r->err);
    if (st < 0) {
        gy_err_prefix(r->err, "%s", r->name);
        return st;
    }
    return build_model(r);
}

gy_status gy_spm_load(gy_spm *m, const void *data, size_t len, const char *name, gy_err *err) {
    model_reader r = {.m = m, .name = name, .err = err};
    gy_status st = model_load(&r, data, len);
    gy_str_free(&r.charsmap);
    return st;
}

void gy_spm_fini(gy_spm *m) {
    gy_vocab_fini(&m->plain);
    gy_vocab_fini(&m->reserved);
    gy_mem_free(m->score);
    gy_mem_free(m->type);
    gy_spm_trie_fini(&m->tree);
    gy_spm_trie_fini(&m->user);
    gy_spm_charsmap_fini(&m->map);
    gy_str_free(&m->unk_surface);
    gy_str_free(&m->unk_piece);
    gy_str_free(&m->bos_piece);
    gy_str_free(&m->eos_piece);
    memset(m, 0, sizeof *m);
}

const char *gy_spm_piece(const gy_spm *m, int32_t id, size_t *len_out) {
    if (id < 0 || id >= m->n_piece) return NULL;
    const char *s = gy_vocab_piece(type_is_plain(m->type[id]) ? &m->plain : &m->reserved, id, len_out);
    if (s) return s;
    if (len_out) *len_out = 1; /* the one piece that is not in a vocabulary is a NUL */
    return "";
}

int32_t gy_spm_id(const gy_spm *m, const char *piece, size_t len) {
    int32_t id = gy_vocab_get(&m->reserved, piece, len);
    return id >= 0 ? id : gy_vocab_get(&m->plain, piece, len);
}
