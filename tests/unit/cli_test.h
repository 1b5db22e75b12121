/* Shared by the tests of jobs: prompts for a model that is not on disk, a description by hand without a tokenizer. */
#ifndef GY_TESTS_UNIT_CLI_TEST_H
#define GY_TESTS_UNIT_CLI_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/cli_requests.h"

#include <string.h>

typedef struct jobs_fixture {
    gy_arena *arena;
    gy_args a;
    gy_jobs j;
    gy_cli_model m; /* 320 tokens, 4 loops, a context of 200, a gate; id 2 ends a text */
    gy_err err;
} jobs_fixture;

static inline void jobs_begin(jobs_fixture *f) {
    *f = (jobs_fixture){.arena = gy_arena_create(GY_MEM_CLI, 4096)};
    assert_non_null(f->arena);
    gy_args_default(&f->a);
    f->a.arena = f->j.arena = f->arena;
    f->m.dir = "a-model";
    f->m.d = (gy_model_desc){.family = "ouro", .n_vocab = 320, .n_loop = 4, .max_pos = 200, .has_gate = 1};
    f->m.eos[0] = 2;
    f->m.n_eos = 1;
}

static inline void jobs_end(jobs_fixture *f) {
    gy_jobs_fini(&f->j);
    gy_arena_destroy(f->arena);
}

static inline gy_status jobs_add(jobs_fixture *f, const char *lines) {
    return gy_jobs_add_jsonl(&f->j, &f->a, lines, strlen(lines), "in.jsonl", &f->err);
}

#endif
