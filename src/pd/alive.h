/* An early word of a process's end. The parent of a process that is killed hears of it last of all: after its memory
 * went back, and with a GPU after the driver has torn down what it held, 60 to 90 ms. The first thing that the kernel
 * does in the end of each thread is to let go of its robust futexes (futex(2), get_robust_list(2)). So a worker has a
 * thread that does nothing but hold one, in a page that it shares with its parent, and the parent has a thread for each
 * worker that waits for it. Nothing polls: both sleep in the kernel.
 *
 *   0: nobody yet --gy_alive_hold--> held by a thread --the kernel, however the process ends--> let go: fd is readable
 *       |                                                                                          ^
 *       +---------- destroy: the process is reaped, or will not be waited for ---------------------+ (nobody hears)
 *
 * The word says: it takes in and says nothing any more. It does not say that nothing more of it is written: its other
 * threads may run for microseconds, and what its GPU copies lands until the driver is done. Only a reaped process
 * writes nothing (spawn.h), so memory that it writes to stays fenced until then. A process that dumps core lets go
 * behind the dump. One that hangs or is stopped holds on. A process that scribbles over the page may look dead, and
 * must then be made so.
 *
 * A hint: where the system gives none of it, the word never comes. The parent's half belongs to one thread.
 */
#ifndef GY_PD_ALIVE_H
#define GY_PD_ALIVE_H

typedef struct gy_alive gy_alive;

/* The parent's half. *fd_out: for the process, and the caller's to close. NULL: there will be no word. */
gy_alive *gy_alive_create(int *fd_out);
void gy_alive_destroy(gy_alive *a);  /* accepts NULL */
int gy_alive_fd(const gy_alive *a);  /* readable: it ends. Borrowed */
int gy_alive_has_ended(gy_alive *a); /* and fd is not readable any more */

/* The process's half, once, before it has anything to lose: what is behind fd is held until its end. Takes fd if it is
 * what gy_alive_create made, and does nothing else. */
void gy_alive_hold(int fd);

#endif
