/* Runs a fuzz target over the files of a folder: the corpora are replayed in every ordinary test run. */
#include "base/file.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    DIR *dir = opendir(argv[1]);
    if (!dir) {
        fprintf(stderr, "%s: no corpus\n", argv[1]);
        return 1;
    }
    int n = 0;
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        if (e->d_name[0] == '.') continue;
        char *path = gy_path_join(argv[1], e->d_name);
        gy_str bytes = {0};
        gy_err err;
        if (gy_file_read(path, 64u << 20, &err, &bytes) == GY_OK) {
            LLVMFuzzerTestOneInput((const uint8_t *)bytes.data, bytes.len);
            n++;
        }
        gy_str_free(&bytes);
        gy_mem_free(path);
    }
    closedir(dir);
    printf("%d inputs replayed\n", n);
    return n == 0; /* an empty corpus tests nothing */
}
