/* Chunked request bodies (RFC 9112 7.1), one byte of framing after the other; data is handed out in runs.
 * No white space around the size: proxies disagree on it. Extensions and trailers are dropped, their bytes counted.
 */
#include "server/http_parse.h"

#include <string.h>

/* SIZE: digits. EXT: up to CR. SIZE_LF, DATA_CR, DATA_LF: exactly that byte. FIELD: first byte of a trailer line. */
enum { SIZE, EXT, SIZE_LF, DATA, DATA_CR, DATA_LF, FIELD, NAME, VALUE, VALUE_LF, LAST_LF, ENDED, BROKEN };

enum { SIZE_DIGITS_MAX = 16 };

void gy_http_chunked_init(gy_http_chunked *d, uint64_t body_max) {
    memset(d, 0, sizeof *d);
    d->body_max = body_max;
}

static int refuse(gy_http_chunked *d, int status, const char *what) {
    d->fault = (gy_http_fault){status, what};
    return BROKEN;
}

static int hex_digit(unsigned char c) {
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* total never passes body_max, so the subtraction cannot wrap. */
static int size_byte(gy_http_chunked *d, unsigned char c) {
    int v = hex_digit(c);
    if (v >= 0) {
        if (++d->n_digit > SIZE_DIGITS_MAX) return refuse(d, 400, "a chunk size has more than 16 digits");
        d->left = d->left * 16 + (uint64_t)v;
        return SIZE;
    }
    if (d->n_digit == 0) return refuse(d, 400, "a chunk does not begin with its size");
    if (c != ';' && c != '\r') return refuse(d, 400, "a chunk size must be hexadecimal, followed by CR LF");
    if (d->left > d->body_max - d->total) return refuse(d, 413, "the body is longer than this server accepts");
    return c == ';' ? EXT : SIZE_LF;
}

static int ext_byte(gy_http_chunked *d, unsigned char c) {
    if (c == '\r') return SIZE_LF;
    if (++d->n_ext > GY_HTTP_EXT_MAX) return refuse(d, 400, "chunk extensions of more than 16384 bytes");
    if ((c >= 0x20 && c < 0x7F) || c == '\t') return EXT;
    return refuse(d, 400, "a control character in a chunk extension");
}

static int size_end(gy_http_chunked *d) {
    d->total += d->left;
    d->n_digit = 0;
    return d->left > 0 ? DATA : FIELD;
}

static int trailer_byte(gy_http_chunked *d, unsigned char c) {
    if (++d->n_trailer > GY_HTTP_TRAILER_MAX) return refuse(d, 431, "trailer fields of more than 8192 bytes");
    if (d->state == VALUE) {
        if (c == '\r') return VALUE_LF;
        return (c < 0x20 && c != '\t') || c == 0x7F ? refuse(d, 400, "a control character in a trailer field") : VALUE;
    }
    if (d->state == FIELD && c == '\r') return LAST_LF;
    if (d->state == NAME && c == ':') return VALUE;
    return gy_http_is_token_char(c) ? NAME : refuse(d, 400, "a trailer field must be: name, colon, value");
}

static int exact_byte(gy_http_chunked *d, unsigned char c, char want, int next) {
    return c == (unsigned char)want ? next : refuse(d, 400, "lines and chunks must end with CR LF");
}

static int next_state(gy_http_chunked *d, unsigned char c) {
    switch (d->state) {
    case SIZE:
        return size_byte(d, c);
    case EXT:
        return ext_byte(d, c);
    case SIZE_LF:
        return c == '\n' ? size_end(d) : exact_byte(d, c, '\n', BROKEN);
    case DATA_CR:
        return exact_byte(d, c, '\r', DATA_LF);
    case DATA_LF:
        return exact_byte(d, c, '\n', SIZE);
    case VALUE_LF:
        return exact_byte(d, c, '\n', FIELD);
    case LAST_LF:
        return exact_byte(d, c, '\n', ENDED);
    default:
        return trailer_byte(d, c);
    }
}

static gy_http_result take_data(gy_http_chunked *d, size_t at, size_t len, size_t *used_out, gy_http_span *data_out) {
    size_t n = len - at;
    if (n > d->left) n = (size_t)d->left;
    if (n > INT32_MAX) n = INT32_MAX;
    *data_out = (gy_http_span){(uint32_t)at, (uint32_t)n};
    *used_out = at + n;
    d->left -= n;
    if (d->left == 0) d->state = DATA_CR;
    return GY_HTTP_DATA;
}

gy_http_result gy_http_chunked_next(gy_http_chunked *d, const char *buf, size_t len, size_t *used_out,
                                    gy_http_span *data_out) {
    size_t i = 0;
    while (i < len && d->state != ENDED && d->state != BROKEN) {
        if (d->state == DATA) return take_data(d, i, len, used_out, data_out);
        d->state = next_state(d, (unsigned char)buf[i++]);
    }
    *used_out = i;
    if (d->state == BROKEN) return GY_HTTP_BAD;
    return d->state == ENDED ? GY_HTTP_DONE : GY_HTTP_MORE;
}
