/* Messages (msg.h) over a stream socket, one end. Never waits: what cannot be written now is kept, up to a bound; a
 * peer that lets it fill up is as good as dead. Owns the descriptor. One thread.
 *
 *   send -> output --flush--> socket          socket --recv--> input -> one message at a time
 *
 * Nothing is allocated once the buffers are as large as the largest burst and the largest message were.
 */
#ifndef GY_PD_CHAN_H
#define GY_PD_CHAN_H

#include "pd/msg.h"

typedef struct gy_chan gy_chan;

enum { GY_CHAN_OUT_MAX = 2 * GY_MSG_MAX };

/* fd: a connected stream socket; made non-blocking; closed by destroy, and here on failure. out_max: bytes that may
 * wait to be written; at least GY_MSG_MAX, so that any message fits an empty buffer. */
gy_status gy_chan_create(int fd, size_t out_max, gy_err *err, gy_chan **out);
/* The same between hosts: TLS 1.3 on a pre-shared key (RFC 8446, 2.2) that is the file's secret; both sides prove that
 * they have it, everything is encrypted and cannot be replayed. Client and server are roles of the handshake only.
 * recv says GY_AGAIN until it is through; a peer without the secret is GY_E_PEER with a sentence. What is sent before
 * waits in the buffer. */
enum { GY_SECRET_MIN = 16, GY_SECRET_MAX = 4096 };
typedef struct gy_secret {
    uint8_t key[32]; /* SHA-256 of the file's bytes, a newline at the end left out */
} gy_secret;
/* GY_E_IO; GY_E_ARG: too short, or others than its owner may read the file. */
gy_status gy_secret_read(const char *path, gy_err *err, gy_secret *out);
gy_status gy_chan_create_secret(int fd, int is_server, const gy_secret *s, size_t out_max, gy_err *err, gy_chan **out);
int gy_chan_is_open(const gy_chan *c); /* 1: the handshake is through, or there is none */

/* Accepts NULL. With a secret and nothing left to write it says goodbye: only then the other side hears GY_DONE. */
void gy_chan_destroy(gy_chan *c);
int gy_chan_fd(const gy_chan *c);

/* Queues a copy; writes nothing. GY_E_PEER: the buffer is full, or the peer has hung up before; GY_E_LIMIT: too large
 * for a frame; GY_E_NOMEM. */
gy_status gy_chan_send(gy_chan *c, const gy_msg *m, gy_err *err);
/* Writes what the socket takes. GY_OK: all is written; GY_AGAIN: wait until it is readable, and writable if
 * gy_chan_has_output says so; GY_E_PEER. */
gy_status gy_chan_flush(gy_chan *c, gy_err *err);
int gy_chan_has_output(const gy_chan *c); /* poll for writing; in a handshake: it has something to write */

/* The next message; its pointers are valid until the next call. GY_AGAIN: none is complete; GY_DONE: the peer has
 * closed its end behind a whole message (with a secret: and said so, else a cut could pass for it); GY_E_PEER: it went
 * away in the middle of one, or the socket failed; GY_E_FORMAT: what came is no message; GY_E_NOMEM. Once not GY_OK or
 * GY_AGAIN, it stays so. Kinds that this side does not know are skipped. */
gy_status gy_chan_recv(gy_chan *c, gy_err *err, gy_msg *out);

typedef struct gy_chan_stats {
    int64_t n_sent, n_received, n_unknown;
    int64_t bytes_out, bytes_in;
    size_t out_peak; /* most bytes that waited */
} gy_chan_stats;
void gy_chan_get_stats(const gy_chan *c, gy_chan_stats *out);

#endif
