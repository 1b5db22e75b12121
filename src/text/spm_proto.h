/* A reader of the protobuf wire format (protobuf.dev/programming-guides/encoding), enough for SentencePiece's
 * ModelProto. Total: any bytes give fields or "malformed", never a read outside the buffer. It allocates nothing and
 * borrows everything. Not here: groups (deprecated; refused as malformed), packed fields, field meanings (spm_model.c).
 */
#ifndef GY_TEXT_SPM_PROTO_H
#define GY_TEXT_SPM_PROTO_H

#include <stddef.h>
#include <stdint.h>

typedef enum gy_pb_wire { GY_PB_VARINT = 0, GY_PB_FIXED64 = 1, GY_PB_BYTES = 2, GY_PB_FIXED32 = 5 } gy_pb_wire;

typedef struct gy_pb {
    const unsigned char *start, *at, *end; /* borrowed */
} gy_pb;

typedef struct gy_pb_field {
    uint32_t number; /* 1 .. 2^29 - 1 */
    gy_pb_wire wire;
    uint64_t value;   /* varint, fixed64, fixed32 */
    const char *data; /* bytes: borrowed */
    size_t len;
} gy_pb_field;

void gy_pb_init(gy_pb *r, const void *data, size_t len);
int gy_pb_next(gy_pb *r, gy_pb_field *f);     /* 1 = a field, 0 = the end, -1 = malformed at gy_pb_offset */
size_t gy_pb_offset(const gy_pb *r);          /* where the next field starts, or the malformed one */
float gy_pb_float(const gy_pb_field *f);      /* a fixed32 field as float */
const char *gy_pb_wire_name(gy_pb_wire wire); /* "a varint", ...: for messages */

#endif
