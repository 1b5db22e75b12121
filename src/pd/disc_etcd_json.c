/* What is said to etcd's JSON gateway and what it says (etcd 3.4, api/v3rpc through grpc-gateway): bytes in base64,
 * 64-bit numbers as strings, members with a default value left out. Whoever may write a key may write anything into it:
 * a value that is no worker's is passed on as bad, never an error. */
#include "base/json.h"
#include "base/mem.h"
#include "pd/disc_etcd.h"
#include "pd/disc_int.h"

#include <string.h>

/* ---- base64 (RFC 4648, 4) ---------------------------------------------------------------------------------------- */

static const char LETTERS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void put_base64(gy_str *s, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = 0;
        for (size_t k = 0; k < 3; k++) v = v << 8 | (i + k < n ? (uint8_t)bytes[i + k] : 0);
        for (size_t k = 0; k < 4; k++) gy_str_putc(s, i + k > n ? '=' : LETTERS[v >> (18 - 6 * k) & 63]);
    }
}

static int digit_of(char c) {
    const char *at = c ? strchr(LETTERS, c) : NULL;
    return at ? (int)(at - LETTERS) : -1;
}

/* The bytes' number, at most cap; -1: no base64, or more. */
static int64_t get_base64(const char *text, size_t n, char *out, size_t cap) {
    size_t len = 0;
    if (n % 4) return -1;
    for (size_t i = 0; i < n; i += 4) {
        int pad = i + 4 == n ? (text[n - 1] == '=') + (text[n - 1] == '=' && text[n - 2] == '=') : 0;
        uint32_t v = 0;
        for (int k = 0; k < 4; k++) {
            int d = k < 4 - pad ? digit_of(text[i + (size_t)k]) : 0;
            if (d < 0) return -1;
            v = v << 6 | (uint32_t)d;
        }
        for (int k = 0; k < 3 - pad; k++) {
            if (len == cap) return -1;
            out[len++] = (char)(v >> (16 - 8 * k) & 255);
        }
    }
    return (int64_t)len;
}

/* ---- bodies ------------------------------------------------------------------------------------------------------ */

/* "key" and "range_end" of all keys that begin with prefix: its last byte, plus one, ends them. It is no 0xff. */
static void put_range(gy_str *s, const char *prefix) {
    char end[GY_DISC_NAME];
    size_t n = strlen(prefix);
    GY_CHECK(n && n < sizeof end);
    memcpy(end, prefix, n);
    end[n - 1]++;
    gy_str_puts(s, "\"key\":\"");
    put_base64(s, prefix, n);
    gy_str_puts(s, "\",\"range_end\":\"");
    put_base64(s, end, n);
    gy_str_putc(s, '"');
}

void gy_etcd_list_body(gy_str *s, const char *prefix) {
    gy_str_putc(s, '{');
    put_range(s, prefix);
    gy_str_printf(s, ",\"limit\":\"%d\"}", GY_ETCD_LIMIT);
}

void gy_etcd_watch_body(gy_str *s, const char *prefix, int64_t revision) {
    gy_str_puts(s, "{\"create_request\":{");
    put_range(s, prefix);
    gy_str_printf(s, ",\"start_revision\":\"%lld\",\"progress_notify\":true}}", (long long)revision);
}

void gy_etcd_grant_body(gy_str *s, int32_t ttl_s) {
    gy_str_printf(s, "{\"TTL\":\"%d\"}", ttl_s);
}

void gy_etcd_lease_body(gy_str *s, int64_t lease) {
    gy_str_printf(s, "{\"ID\":\"%lld\"}", (long long)lease);
}

void gy_etcd_put_body(gy_str *s, const char *prefix, const char *name, const char *address, int64_t lease) {
    gy_str key = {0}, value = {0};
    gy_jw w;
    gy_str_printf(&key, "%s%s", prefix, name);
    gy_jw_init(&w, &value);
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, "address");
    gy_jw_strz(&w, address);
    gy_jw_key(&w, "version");
    gy_jw_strz(&w, GY_VERSION);
    gy_jw_obj_end(&w);
    gy_str_puts(s, "{\"key\":\"");
    put_base64(s, key.data, key.len);
    gy_str_puts(s, "\",\"value\":\"");
    put_base64(s, value.data, value.len);
    gy_str_printf(s, "\",\"lease\":\"%lld\"}", (long long)lease);
    s->failed |= key.failed | value.failed;
    gy_str_free(&key);
    gy_str_free(&value);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* A string of digits, or a number: other versions of the gateway write small ones so. */
static int64_t number(const gy_jv *v, int64_t dflt) {
    const char *s = gy_jv_str(v, NULL);
    int64_t n = 0;
    if (!s) return gy_jv_int(v, dflt);
    if (!*s || strlen(s) > 19) return dflt;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || __builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *s - '0', &n))
            return dflt;
    }
    return n;
}

/* FNV-1a. */
static uint64_t hash_of(const char *s, size_t n) {
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)s[i]) * 1099511628211u;
    return h;
}

/* from is valid UTF-8, and so is what is left of it. */
static void copy_cut(char *to, size_t cap, const char *from) {
    size_t n = strnlen(from, cap - 1);
    n -= (size_t)gy_utf8_incomplete_tail(from, n);
    memcpy(to, from, n);
    to[n] = '\0';
}

static void bad(gy_etcd_key *k, const char *why) {
    if (!k->why[0]) copy_cut(k->why, sizeof k->why, why);
}

static void read_name(const gy_jv *kv, const char *prefix, gy_etcd_key *k) {
    char bytes[GY_ETCD_MAX_VALUE];
    size_t n, n_prefix = strlen(prefix);
    const char *text = gy_jv_str(gy_jv_get(kv, "key"), &n);
    k->hash = hash_of(text ? text : "", text ? n : 0);
    int64_t len = text ? get_base64(text, n, bytes, sizeof bytes) : -1;
    size_t n_name = len > (int64_t)n_prefix ? (size_t)len - n_prefix : 0;
    int good = n_name && n_name < sizeof k->name && !memcmp(bytes, prefix, n_prefix);
    for (size_t i = 0; i < n_name && good; i++) good = bytes[n_prefix + i] > ' ' && bytes[n_prefix + i] <= '~';
    if (!good) {
        bad(k, "the key: expected 1 to 127 visible ASCII characters behind the prefix");
        return;
    }
    memcpy(k->name, bytes + n_prefix, n_name);
    k->name[n_name] = '\0';
}

static void read_address(const gy_jv *value, gy_etcd_key *k) {
    size_t n;
    gy_err err = {0};
    const char *s = gy_jv_str(gy_jv_get(value, "address"), &n);
    if (!s) {
        bad(k, "the value: expected an object with \"address\": \"HOST:PORT\"");
        return;
    }
    gy_status st = strlen(s) == n ? gy_disc_check_address(s, &err) : gy_err_set(&err, GY_E_ARG, "found a NUL byte");
    if (st == GY_OK) {
        strcpy(k->address, s);
        return;
    }
    gy_err_prefix(&err, "the value's address");
    bad(k, err.msg);
}

static gy_status read_value(const gy_jv *kv, gy_etcd_key *k) {
    char bytes[GY_ETCD_MAX_VALUE];
    size_t n = 0;
    gy_json *doc = NULL;
    const gy_json_limits lim = {.max_bytes = sizeof bytes, .max_depth = 8};
    const char *text = gy_jv_str(gy_jv_get(kv, "value"), &n);
    int64_t len = text ? get_base64(text, n, bytes, sizeof bytes) : 0;
    gy_status st = len < 0 ? GY_E_FORMAT : gy_json_parse(bytes, (size_t)len, &lim, NULL, &doc);
    if (st < 0)
        bad(k, "the value: expected a JSON object of at most 4096 bytes");
    else
        read_address(gy_json_root(doc), k);
    gy_json_free(doc);
    return st;
}

/* GY_E_NOMEM says nothing about the key; any other fault is the key's own. */
static gy_status read_key(const gy_jv *kv, int is_delete, const char *prefix, gy_etcd_key_fn *fn, void *user) {
    gy_etcd_key k = {.is_delete = is_delete, .revision = number(gy_jv_get(kv, "mod_revision"), 0)};
    read_name(kv, prefix, &k);
    if (!is_delete && read_value(kv, &k) == GY_E_NOMEM) return GY_E_NOMEM;
    fn(user, &k);
    return GY_OK;
}

static gy_status no_memory(gy_err *err) {
    return gy_err_set(err, GY_E_NOMEM, "no memory for an answer");
}

/* ---- replies ----------------------------------------------------------------------------------------------------- */

static gy_status parse(const char *text, size_t n, gy_err *err, gy_json **out) {
    const gy_json_limits lim = {.max_bytes = GY_ETCD_MAX_REPLY, .max_depth = 16};
    gy_err e = {0};
    gy_status st = gy_json_parse(text, n, &lim, &e, out);
    if (st == GY_E_NOMEM) return no_memory(err);
    return st < 0 ? gy_err_set(err, GY_E_FORMAT, "not what etcd says: %s", e.msg) : GY_OK;
}

gy_status gy_etcd_list_read(const char *text, size_t n, const char *prefix, gy_etcd_key_fn *fn, void *user, gy_err *err,
                            int64_t *revision, int *is_cut) {
    gy_json *doc;
    GY_TRY(parse(text, n, err, &doc));
    const gy_jv *root = gy_json_root(doc), *kvs = gy_jv_get(root, "kvs");
    int64_t at = number(gy_jv_get(gy_jv_get(root, "header"), "revision"), -1);
    gy_status st = GY_OK;
    if (at < 0 || (kvs && gy_jv_type(kvs) != GY_J_ARRAY))
        st = gy_err_set(err, GY_E_FORMAT, "not what etcd says: expected a list with a revision");
    for (size_t i = 0; st == GY_OK && i < gy_jv_len(kvs); i++)
        if (read_key(gy_jv_at(kvs, i), 0, prefix, fn, user) < 0) st = no_memory(err);
    if (st == GY_OK) *revision = at;
    if (st == GY_OK) *is_cut = gy_jv_bool(gy_jv_get(root, "more"), 0);
    gy_json_free(doc);
    return st;
}

/* In the middle of a stream: {"error": {...}}, whose members have had several names. */
static gy_status read_stream_error(const gy_jv *root, gy_err *err) {
    const gy_jv *e = gy_jv_get(root, "error");
    const char *text = gy_jv_str(gy_jv_get(e, "message"), NULL);
    char said[256];
    if (!text) text = gy_jv_str(e, NULL);
    copy_cut(said, sizeof said, text && *text ? text : "not what etcd says: expected a result");
    return gy_err_set(err, GY_E_FORMAT, "%s", said);
}

static gy_status read_events(const gy_jv *result, const char *prefix, gy_etcd_key_fn *fn, void *user, gy_err *err) {
    const gy_jv *events = gy_jv_get(result, "events");
    for (size_t i = 0; i < gy_jv_len(events); i++) {
        const gy_jv *e = gy_jv_at(events, i), *type = gy_jv_get(e, "type");
        int is_delete = gy_jv_is_str(type, "DELETE") || gy_jv_int(type, 0) == 1;
        if (read_key(gy_jv_get(e, "kv"), is_delete, prefix, fn, user) < 0) return no_memory(err);
    }
    return GY_OK;
}

gy_status gy_etcd_watch_read(const char *line, size_t n, const char *prefix, gy_etcd_key_fn *fn, void *user,
                             gy_err *err, gy_etcd_note *out) {
    gy_json *doc;
    GY_TRY(parse(line, n, err, &doc));
    const gy_jv *result = gy_jv_get(gy_json_root(doc), "result");
    gy_status st = gy_jv_type(result) == GY_J_OBJECT ? GY_OK : read_stream_error(gy_json_root(doc), err);
    if (st == GY_OK) {
        const char *reason = gy_jv_str(gy_jv_get(result, "cancel_reason"), NULL);
        *out = (gy_etcd_note){.is_created = gy_jv_bool(gy_jv_get(result, "created"), 0),
                              .is_canceled = gy_jv_bool(gy_jv_get(result, "canceled"), 0),
                              .compact_revision = number(gy_jv_get(result, "compact_revision"), 0)};
        if (reason) copy_cut(out->reason, sizeof out->reason, reason);
        st = read_events(result, prefix, fn, user, err);
    }
    gy_json_free(doc);
    return st;
}

gy_status gy_etcd_lease_read(const char *text, size_t n, gy_err *err, int64_t *lease, int64_t *ttl_s) {
    gy_json *doc;
    GY_TRY(parse(text, n, err, &doc));
    const gy_jv *root = gy_json_root(doc), *result = gy_jv_get(root, "result");
    int64_t id = number(gy_jv_get(result ? result : root, "ID"), 0);
    int64_t ttl = number(gy_jv_get(result ? result : root, "TTL"), 0);
    gy_status st = id > 0 ? GY_OK : read_stream_error(root, err);
    if (st == GY_OK) *lease = id;
    if (st == GY_OK) *ttl_s = ttl > 0 ? ttl : 0;
    gy_json_free(doc);
    return st;
}

void gy_etcd_error_read(const char *text, size_t n, char out[128], int64_t *code) {
    gy_json *doc;
    out[0] = '\0';
    *code = -1;
    if (parse(text, n, NULL, &doc) < 0) return;
    const gy_jv *root = gy_json_root(doc);
    const char *said = gy_jv_str(gy_jv_get(root, "message"), NULL);
    if (!said) said = gy_jv_str(gy_jv_get(root, "error"), NULL);
    if (said) copy_cut(out, 128, said);
    *code = gy_jv_int(gy_jv_get(root, "code"), -1);
    gy_json_free(doc);
}
