/* Frames of arbitrary bytes: refused, or read into a struct that is written and read again to the same bytes. */
#include "pd/msg.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gy_arena *a = gy_arena_create(GY_MEM_PD, 4096);
    gy_str out = {0}, again = {0};
    gy_msg m, n;
    gy_err err;
    size_t frame = 0;
    if (gy_msg_frame((const char *)data, size, &frame, &err) == GY_OK && frame &&
        gy_msg_decode((const char *)data, frame, a, &err, &m) == GY_OK) {
        GY_CHECK(gy_msg_encode(&m, &out) == GY_OK);
        GY_CHECK(gy_msg_decode(out.data, out.len, a, &err, &n) == GY_OK);
        GY_CHECK(gy_msg_encode(&n, &again) == GY_OK);
        GY_CHECK(out.len == again.len && !memcmp(out.data, again.data, out.len));
    }
    gy_str_free(&out);
    gy_str_free(&again);
    gy_arena_destroy(a);
    return 0;
}
