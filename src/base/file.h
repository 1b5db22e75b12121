/* Files: mapping and bounded reading. Errors name the path, what was found and what to do. */
#ifndef GY_BASE_FILE_H
#define GY_BASE_FILE_H

#include "base/status.h"
#include "base/str.h"

#include <stddef.h>

typedef struct gy_map {
    const char *data; /* NULL when size is 0 */
    size_t size;
} gy_map;

/* Maps a regular file read-only. The mapping outlives the descriptor. Directories, devices and pipes are refused. */
gy_status gy_map_open(const char *path, gy_err *err, gy_map *out);
void gy_map_close(gy_map *m); /* accepts a zeroed map */
/* Bytes of an open map that will hardly be read again leave this process; whoever does read them gets them once more
 * from the file. */
void gy_map_drop(const void *p, size_t bytes);

/* Reads a whole file of at most max_bytes into out (appended). */
gy_status gy_file_read(const char *path, size_t max_bytes, gy_err *err, gy_str *out);
int gy_file_exists(const char *path); /* a regular file (or a link to one) */
int gy_dir_exists(const char *path);
/* dir + "/" + name, new memory (gy_mem_free), NULL on no memory. */
char *gy_path_join(const char *dir, const char *name);

#endif
