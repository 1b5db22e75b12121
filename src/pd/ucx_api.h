/* libucp, loaded when the first transfer over it opens. It is not linked: that alone would let its memory hooks
 * (libucm) into every process that never moves KV, and ThreadSanitizer does not survive them. Builds need its headers
 * only, of 1.13 or later: what runs may be newer.
 *
 * Looked for: where -DUCX_ROOT said when this was built; else as libucx/lib/libucp.so.0 beside the program (or
 * libgyre.so), or in ../lib from there, which is how the wheel libucx-cu13 unpacks; else where the system looks. The
 * first that is there is taken. GPU memory needs one that was built with CUDA, which Debian's is not.
 */
#ifndef GY_PD_UCX_API_H
#define GY_PD_UCX_API_H

#include "base/status.h"

#include <ucp/api/ucp.h>

#define GY_UCX_CALLS(X)                                                                                                \
    X(ucp_get_version_string)                                                                                          \
    X(ucp_init_version)                                                                                                \
    X(ucp_cleanup)                                                                                                     \
    X(ucp_config_read)                                                                                                 \
    X(ucp_config_modify)                                                                                               \
    X(ucp_config_release)                                                                                              \
    X(ucp_worker_create)                                                                                               \
    X(ucp_worker_destroy)                                                                                              \
    X(ucp_worker_progress)                                                                                             \
    X(ucp_worker_arm)                                                                                                  \
    X(ucp_worker_get_efd)                                                                                              \
    X(ucp_worker_get_address)                                                                                          \
    X(ucp_worker_release_address)                                                                                      \
    X(ucp_worker_set_am_recv_handler)                                                                                  \
    X(ucp_ep_create)                                                                                                   \
    X(ucp_ep_close_nbx)                                                                                                \
    X(ucp_ep_flush_nbx)                                                                                                \
    X(ucp_ep_print_info)                                                                                               \
    X(ucp_ep_rkey_unpack)                                                                                              \
    X(ucp_rkey_ptr)                                                                                                    \
    X(ucp_rkey_pack)                                                                                                   \
    X(ucp_rkey_destroy)                                                                                                \
    X(ucp_rkey_buffer_release)                                                                                         \
    X(ucp_mem_map)                                                                                                     \
    X(ucp_mem_unmap)                                                                                                   \
    X(ucp_mem_query)                                                                                                   \
    X(ucp_put_nbx)                                                                                                     \
    X(ucp_get_nbx)                                                                                                     \
    X(ucp_am_send_nbx)                                                                                                 \
    X(ucp_request_free)                                                                                                \
    X(ucp_request_check_status)                                                                                        \
    X(ucs_status_string)

typedef struct gy_ucx_api {
#define GY_UCX_MEMBER(f) __typeof__(f) *f; /* NOLINT(bugprone-macro-parentheses): a declarator */
    GY_UCX_CALLS(GY_UCX_MEMBER)
#undef GY_UCX_MEMBER
} gy_ucx_api;

/* Any thread; loads once per process. GY_E_IO: the library is not there, or not all of these are in it. */
gy_status gy_ucx_load(gy_err *err);
const gy_ucx_api *gy_ucx(void); /* after a load that succeeded */
const char *gy_ucx_path(void);  /* of what was loaded; "" before */

#endif
