/* config.json of all families: any bytes give a description whose numbers are usable, or an error with a message. */
#include "base/status.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gy_err err = {0};
    gy_model_desc d;
    if (gy_model_parse_desc((const char *)data, size, &err, &d) < 0) {
        GY_CHECK(err.msg[0] && err.status < 0);
        return 0;
    }
    GY_CHECK(d.n_vocab > 0 && d.n_embd > 0 && d.n_ff > 0 && d.n_head > 0 && d.n_head_kv > 0 && d.head_dim > 0);
    GY_CHECK(d.head_dim % 2 == 0 && d.n_head % d.n_head_kv == 0 && d.n_loop > 0 && d.max_pos > 0);
    GY_CHECK(d.n_layer[GY_CORE] > 0 && d.n_layer[GY_PRELUDE] >= 0 && d.n_layer[GY_CODA] >= 0);
    GY_CHECK(d.eps > 0.0f && d.rope_theta > 0.0 && d.n_eos >= 0 && d.n_eos <= GY_MAX_EOS);
    return 0;
}
