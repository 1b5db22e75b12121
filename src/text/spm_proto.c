/* The wire format reader: see spm_proto.h. A tag is varint(number << 3 | wire); what follows depends on the wire type.
 */
#include "text/spm_proto.h"

#include <string.h>

void gy_pb_init(gy_pb *r, const void *data, size_t len) {
    r->start = r->at = data;
    r->end = len ? r->start + len : r->start;
}

size_t gy_pb_offset(const gy_pb *r) {
    return (size_t)(r->at - r->start);
}

/* At most 10 bytes; bits beyond the 64th are dropped, as protobuf's own readers do. Bytes used, 0 if cut short. */
static size_t pb_varint(const unsigned char *p, const unsigned char *end, uint64_t *value_out) {
    uint64_t v = 0;
    for (size_t i = 0; i < 10 && p + i < end; i++) {
        v |= (uint64_t)(p[i] & 0x7F) << (7 * i);
        if (!(p[i] & 0x80)) {
            *value_out = v;
            return i + 1;
        }
    }
    return 0;
}

static const unsigned char *pb_fixed(const unsigned char *p, const unsigned char *end, size_t n, uint64_t *value_out) {
    if ((size_t)(end - p) < n) return NULL;
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) v |= (uint64_t)p[i] << (8 * i);
    *value_out = v;
    return p + n;
}

/* The payload after the tag. NULL if it does not fit. */
static const unsigned char *pb_payload(const unsigned char *p, const unsigned char *end, gy_pb_field *f) {
    if (f->wire == GY_PB_FIXED32) return pb_fixed(p, end, 4, &f->value);
    if (f->wire == GY_PB_FIXED64) return pb_fixed(p, end, 8, &f->value);
    size_t used = pb_varint(p, end, &f->value);
    if (!used) return NULL;
    p += used;
    if (f->wire == GY_PB_VARINT) return p;
    if (f->value > (size_t)(end - p)) return NULL;
    f->data = (const char *)p;
    f->len = (size_t)f->value;
    return p + f->len;
}

int gy_pb_next(gy_pb *r, gy_pb_field *f) {
    if (r->at == r->end) return 0;
    memset(f, 0, sizeof *f);
    uint64_t tag;
    size_t used = pb_varint(r->at, r->end, &tag);
    if (!used || tag >> 32 || !(tag >> 3)) return -1;
    unsigned wire = (unsigned)(tag & 7);
    if (wire == 3 || wire == 4 || wire > 5) return -1;
    f->number = (uint32_t)(tag >> 3);
    f->wire = (gy_pb_wire)wire;
    const unsigned char *next = pb_payload(r->at + used, r->end, f);
    if (!next) return -1;
    r->at = next;
    return 1;
}

float gy_pb_float(const gy_pb_field *f) {
    uint32_t bits = (uint32_t)f->value;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

const char *gy_pb_wire_name(gy_pb_wire wire) {
    switch (wire) {
    case GY_PB_VARINT:
        return "a varint";
    case GY_PB_FIXED64:
        return "a 64-bit value";
    case GY_PB_BYTES:
        return "bytes";
    case GY_PB_FIXED32:
        return "a 32-bit value";
    }
    return "unknown";
}
