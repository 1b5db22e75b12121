/* The KV of a model: arenas in its backend's memory, the gy_kv over them, and the views that the loop driver reads.
 * Shared by the engine and eval. Engine lifetime. Open struct: a zeroed one is closed.
 */
#ifndef GY_ENGINE_KVMEM_H
#define GY_ENGINE_KVMEM_H

#include "kv/kv.h"
#include "model/desc.h"

typedef struct gy_kvmem {
    gy_backend *be; /* borrowed */
    gy_kv *kv;
    gy_kv_view view[GY_KV_GROUPS]; /* base NULL for an empty group */
    void *arena[GY_KV_GROUPS];
    size_t arena_bytes[GY_KV_GROUPS];
    int is_lent; /* arenas are another's */
} gy_kvmem;

/* Arenas that somebody else owns (regions that other processes write into): memory that the backend computes on,
 * zeroed, page aligned, kept until after gy_kvmem_close. Called once for each group that is not empty, in order. NULL:
 * there is no memory. */
typedef struct gy_kvmem_lender {
    void *(*memory)(void *arg, int group, size_t bytes);
    void *arg;
} gy_kvmem_lender;

/* A configuration for this model: one sequence of max_len tokens at the trained depth, last_exited, no blocks yet. The
 * caller changes what it wants otherwise. */
gy_kv_config gy_kvmem_config(const gy_model_desc *d, gy_dtype act, int32_t max_len);

/* GY_E_UNSUPPORTED: KV in t is neither as activations nor what the backend says that it takes. */
gy_status gy_kvmem_check_type(const gy_backend *be, gy_dtype t, gy_err *err);

/* c->n_block says how large; lender NULL: arenas of the backend. Fails with GY_E_LIMIT when slots would not fit 32
 * bits, GY_E_NOMEM; nothing stays open then. */
gy_status gy_kvmem_open(gy_kvmem *s, gy_backend *be, const gy_kv_config *c, const gy_kvmem_lender *lender, gy_err *err);
void gy_kvmem_close(gy_kvmem *s);

#endif
