/* Answers of etcd's gateway, lists of workers and addresses, on arbitrary bytes: what is taken is a worker that can be
 * dialled, what is refused has a sentence. The first byte says which kind of answer the rest is. */
#include "pd/disc.h"
#include "pd/disc_etcd.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char PREFIX[] = "/gyre/default/";

static void check_text(const char *s, size_t cap) {
    size_t n = strnlen(s, cap);
    GY_CHECK(n < cap && gy_utf8_valid(s, n));
}

static void on_key(void *user, const gy_etcd_key *k) {
    char host[256], port[8];
    int *n = user;
    ++*n;
    check_text(k->name, sizeof k->name);
    check_text(k->why, sizeof k->why);
    GY_CHECK(k->revision >= INT64_MIN && (k->name[0] || k->why[0]));
    if (k->why[0] || k->is_delete) return;
    GY_CHECK(gy_address_split(k->address, NULL, host, port) == GY_OK && host[0] && strcmp(port, "0"));
}

static void check_status(gy_status st, const gy_err *err) {
    GY_CHECK(st == GY_OK || (st == GY_E_FORMAT && err->msg[0]));
    check_text(err->msg, sizeof err->msg);
}

static void read_address(const char *text, size_t n) {
    char copy[400], host[256] = "", port[8] = "";
    gy_err err = {0};
    if (n >= sizeof copy) return;
    memcpy(copy, text, n);
    copy[n] = '\0';
    gy_status st = gy_address_split(copy, &err, host, port);
    GY_CHECK(st == GY_OK ? port[0] != '\0' : st == GY_E_ARG && err.msg[0] && !host[0] && !port[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gy_err err = {0};
    int64_t a, b;
    int n = 0, is_cut;
    char said[128];
    gy_etcd_note note;
    if (!size) return 0;
    const char *text = (const char *)data + 1;
    size--;
    switch (data[0]) {
    case 'l':
        check_status(gy_etcd_list_read(text, size, PREFIX, on_key, &n, &err, &a, &is_cut), &err);
        break;
    case 'w':
        if (gy_etcd_watch_read(text, size, PREFIX, on_key, &n, &err, &note) == GY_OK)
            check_text(note.reason, sizeof note.reason);
        else
            check_status(GY_E_FORMAT, &err);
        break;
    case 'g':
        if (gy_etcd_lease_read(text, size, &err, &a, &b) == GY_OK)
            GY_CHECK(a > 0 && b >= 0);
        else
            check_status(GY_E_FORMAT, &err);
        break;
    case 'e':
        gy_etcd_error_read(text, size, said, &a);
        check_text(said, sizeof said);
        break;
    default:
        read_address(text, size);
    }
    return 0;
}
