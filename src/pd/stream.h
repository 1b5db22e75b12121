/* Copies to memory that this process does not read again: past its caches, which hold what it computes with. */
#ifndef GY_PD_STREAM_H
#define GY_PD_STREAM_H

#include <stddef.h>

/* When it returns, whoever sees a later store of this thread sees these bytes. */
void gy_stream_copy(void *to, const void *from, size_t n);

#endif
