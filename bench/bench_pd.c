/* gyre-bench-pd: prefill and decode in processes of their own: how fast KV moves, what a hand-off costs, how soon a
 * death is known. Every rate stands beside the one that the machine reaches in the same run.
 *
 *   gyre-bench-pd [PART...] [--kills N] [--shape SHAPE] [--prompt N] [--gyre PROGRAM] [--device LIST] [--json]
 *
 *   transfer   puts beside memcpy, by size; copies of an op; latency; shared memory and tcp
 *   budget     the KV of a 2048-token prompt, with what may be under way and in which pieces
 *   handoff    a prompt is computed -> all of it is at D -> its first token
 *   detect     kill -9 of a worker -> the coordinator knows; answers are those of one engine. SHAPE: tiny-ouro; prompts
 * of 96 layouts    one engine, two replicas, 1P1D, two hybrids on the same work (gyre bench engine --layouts)
 *
 *   Without a part all of them. LIST: GPUs of workers (handoff, detect), as gyre serve takes them. PROGRAM is what is
 * started as a worker: gyre, where it lies beside this one's folder.
 */
#include "pd_parts.h"

#include "base/cpu.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

typedef struct part {
    const char *name;
    gy_status (*go)(const pd_bench *b, gy_err *err);
} part;

static const part parts[] = {{"transfer", pd_transfer},
                             {"budget", pd_budget},
                             {"handoff", pd_handoff},
                             {"detect", pd_detect},
                             {"layouts", pd_layouts}};
enum { N_PART = sizeof parts / sizeof *parts, DEFAULT_KILLS = 50, DEFAULT_PROMPT = 96 };

static void head(void) {
    struct utsname u;
    double load[3] = {0};
    char when[32];
    time_t now = time(NULL);
    struct tm tm;
    uname(&u);
    if (getloadavg(load, 3) < 1) load[0] = 0;
    strftime(when, sizeof when, "%Y-%m-%d %H:%M", localtime_r(&now, &tm));
    printf("machine: %s, %d cores, %.1f GB of memory free, %s %s; %s, load %.1f\n", gy_cpu_model(),
           gy_cpu_count_physical(), (double)gy_mem_available() * 1e-9, u.sysname, u.release, when, load[0]);
    fflush(stdout);
}

/* build/release/gyre of build/release/bench/gyre-bench-pd. */
static int find_gyre(char *path, size_t cap) {
    ssize_t n = readlink("/proc/self/exe", path, cap - 1);
    if (n < 0) return -1;
    path[n] = 0;
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(path, '/');
        if (!slash) return -1;
        *slash = 0;
    }
    if (strlen(path) + sizeof "/gyre" > cap) return -1;
    strcat(path, "/gyre");
    return access(path, X_OK);
}

static void remove_checkpoints(const char *tmp) {
    static const char *const files[] = {"config.json", "model.safetensors"};
    char path[768];
    DIR *d = opendir(tmp);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            snprintf(path, sizeof path, "%s/%s/%s", tmp, e->d_name, files[i]);
            unlink(path);
        }
        snprintf(path, sizeof path, "%s/%s", tmp, e->d_name);
        rmdir(path);
    }
    if (d) closedir(d);
    rmdir(tmp);
}

static int usage(void) {
    fprintf(stderr, "usage: gyre-bench-pd [transfer] [budget] [handoff] [detect] [layouts] [--kills N] [--shape SHAPE] "
                    "[--prompt N] [--gyre PROGRAM] [--device LIST] [--json]\n");
    return 2;
}

static const part *find_part(const char *name) {
    for (size_t i = 0; i < N_PART; i++)
        if (!strcmp(parts[i].name, name)) return &parts[i];
    return NULL;
}

static int go(const pd_bench *b, const unsigned char *wanted, int all) {
    int failed = 0;
    for (size_t i = 0; i < N_PART; i++) {
        gy_err err = {0};
        if (!all && !wanted[i]) continue;
        if (!b->json) printf("\n---- %s\n", parts[i].name);
        if (parts[i].go(b, &err) >= 0) continue;
        fprintf(stderr, "gyre-bench-pd: %s: %s\n", parts[i].name, err.msg);
        failed = 1;
    }
    return failed;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    static char found[4096], tmp[] = "/tmp/gyre-bench-pd-XXXXXX";
    pd_bench b = {.n_kill = DEFAULT_KILLS, .shape = "tiny-ouro", .n_prompt = DEFAULT_PROMPT};
    unsigned char wanted[N_PART] = {0};
    int all = 1;
    for (int i = 1; i < argc; i++) {
        const part *p = find_part(argv[i]);
        if (p)
            wanted[p - parts] = 1, all = 0;
        else if (!strcmp(argv[i], "--json"))
            b.json = 1;
        else if (i + 1 < argc && !strcmp(argv[i], "--gyre"))
            b.gyre = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--device"))
            b.device = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--shape"))
            b.shape = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--prompt"))
            b.n_prompt = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--kills") && (b.n_kill = atoi(argv[i + 1])) > 0)
            i++;
        else
            return usage();
    }
    if (!b.gyre && find_gyre(found, sizeof found)) {
        fprintf(stderr, "gyre-bench-pd: no program gyre beside this one's folder (%s); name it with --gyre\n", found);
        return 1;
    }
    if (!b.gyre) b.gyre = found;
    if (!mkdtemp(tmp)) {
        fprintf(stderr, "gyre-bench-pd: cannot make a folder in /tmp: %s\n", strerror(errno));
        return 1;
    }
    b.tmp = tmp;
    if (!b.json) head();
    const int failed = go(&b, wanted, all);
    remove_checkpoints(tmp);
    return failed;
}
