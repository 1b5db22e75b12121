/* A growing array of one type. GY_VEC(int32_t) declares the struct; the functions work through byte sizes.
 *     GY_VEC(int32_t) ids = {0};
 *     if (gy_vec_push(&ids, GY_MEM_TEXT, 7)) return GY_E_NOMEM;
 *     gy_vec_free(&ids);
 * Not thread-safe. Pointers into it die with the next push.
 */
#ifndef GY_BASE_VEC_H
#define GY_BASE_VEC_H

#include "base/mem.h"

#include <stddef.h>
#include <stdint.h>

#define GY_VEC(type)                                                                                                   \
    struct {                                                                                                           \
        type *data;                                                                                                    \
        size_t len, cap;                                                                                               \
    }
typedef GY_VEC(int32_t) gy_vec_i32;
typedef GY_VEC(char *) gy_vec_str; /* who frees the strings is said where it is used */

/* Makes room for `more` further elements. 0 on success, -1 on no memory (nothing changed). */
int gy_vec_grow_(void **data, size_t *cap, size_t len, size_t more, size_t elem_bytes, gy_mem_tag tag);

#define gy_vec_reserve(v, tag, more)                                                                                   \
    gy_vec_grow_((void **)(void *)&(v)->data, &(v)->cap, (v)->len, (more), sizeof(*(v)->data), (tag))
#define gy_vec_push(v, tag, x) (gy_vec_reserve((v), (tag), 1) ? -1 : ((v)->data[(v)->len++] = (x), 0))
#define gy_vec_free(v) (gy_mem_free((v)->data), (v)->data = NULL, (v)->len = (v)->cap = 0)

#endif
