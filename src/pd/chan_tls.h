/* TLS 1.3 on a pre-shared key below a channel: chan.c knows no more of it than this. Borrows the descriptor, which is
 * non-blocking and connected. One thread. Sentences have no "control channel: " in front.
 */
#ifndef GY_PD_CHAN_TLS_H
#define GY_PD_CHAN_TLS_H

#include "pd/chan.h"

typedef struct gy_chan_tls gy_chan_tls;

gy_status gy_chan_tls_create(int fd, int is_server, const gy_secret *s, gy_err *err, gy_chan_tls **out);
/* Accepts NULL. is_whole: all that was said is written, so that the peer may be told that this end is meant. Never
 * waits. */
void gy_chan_tls_destroy(gy_chan_tls *t, int is_whole);

int gy_chan_tls_is_open(const gy_chan_tls *t);
int gy_chan_tls_wants_write(const gy_chan_tls *t); /* of the handshake; what a write waits for its caller knows */

/* One step of the handshake. GY_OK: it is through; GY_AGAIN; GY_E_PEER. */
gy_status gy_chan_tls_shake(gy_chan_tls *t, gy_err *err);
/* GY_OK: *n > 0 bytes; GY_AGAIN; GY_DONE: the peer has said that it writes nothing more; GY_E_PEER: it is gone without
 * that, or what came is not of it. Shakes first. */
gy_status gy_chan_tls_read(gy_chan_tls *t, char *to, size_t room, size_t *n, gy_err *err);
/* GY_OK: *n > 0 bytes are on their way; GY_AGAIN: what is offered next must begin with the same bytes and be no
 * shorter; GY_E_PEER, and reading goes on. Shakes first. */
gy_status gy_chan_tls_write(gy_chan_tls *t, const char *bytes, size_t len, size_t *n, gy_err *err);

#endif
