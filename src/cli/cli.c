/* Dispatch: which command, its options, --help and --version. The commands themselves are in cli_NAME.c. */
#include "cli/cli.h"

#include "base/file.h"
#include "base/log.h"
#include "cli/cli_args.h"
#include "cli/cli_bench_serve_args.h"
#include "cli/cli_worker.h"

#include <signal.h>
#include <string.h>

static void put_overview(gy_str *s) {
    gy_str_puts(s, "usage: gyre COMMAND [arguments]\n\n"
                   "Runs looped language models (Ouro, Huginn, Nanbeige4.2) from Hugging Face folders.\n\n");
    for (size_t i = 0; i < gy_n_cmds; i++) gy_str_printf(s, "  %-10s %s\n", gy_cmds[i].name, gy_cmds[i].summary);
    gy_str_printf(s, "  %-10s %s\n", gy_cmd_worker.name, gy_cmd_worker.summary);
    gy_str_puts(s, "\n  gyre help COMMAND, gyre COMMAND --help   options of a command\n"
                   "  gyre --version                           the version\n\n"
                   "Exit codes: 0 done, 1 failed, 2 what was asked for is wrong or impossible.\n");
}

static void put_command(const gy_cmd *c, gy_str *s) {
    gy_str_printf(s, "usage: gyre %s %s\n\ngyre %s: %s.\n%s", c->name, c->usage, c->name, c->summary, c->text);
    gy_opts_help(c->groups, s);
}

static int print_help(const gy_cmd *c) {
    gy_str s = {0};
    if (c)
        put_command(c, &s);
    else
        put_overview(&s);
    gy_cli_put_str(&s);
    gy_str_free(&s);
    return gy_cli_finish(GY_CLI_OK);
}

static int usage_error(const char *command, const gy_err *err) {
    int rc = gy_cli_fail(err);
    if (rc == GY_CLI_USAGE) gy_cli_note("gyre %s%s--help lists what there is", command, command[0] ? " " : "");
    return rc;
}

static int unknown_command(const char *name) {
    const char *names[16];
    size_t n = 0;
    gy_err err = {0};
    for (const char *const *l = gy_cmds_later; *l; l++)
        if (!strcmp(*l, name)) {
            gy_err_set(&err, GY_E_ARG, "%s: this command is not in this build yet", name);
            return gy_cli_fail(&err);
        }
    for (; n < gy_n_cmds && n < 16; n++) names[n] = gy_cmds[n].name;
    const char *near = gy_suggest(name, names, n);
    gy_err_set(&err, GY_E_ARG, "unknown command '%.80s'%s%s%s", name, near ? "; did you mean " : "", near ? near : "",
               near ? "?" : "");
    return usage_error("", &err);
}

/* The config file comes behind the command line: it sets what the line did not. */
static gy_status apply_config(gy_opts *o, const char *path, gy_err *err) {
    static const char *const never[] = {"config", "help", NULL};
    gy_json *doc = NULL;
    GY_TRY(gy_json_read(path, NULL, err, &doc));
    const gy_jv *root = gy_json_root(doc);
    gy_status st = GY_OK;
    for (const char *const *n = never; *n && st == GY_OK; n++)
        if (gy_jv_get(root, *n)) st = gy_err_set(err, GY_E_ARG, "field \"%s\": belongs on the command line", *n);
    if (st == GY_OK) st = gy_opts_apply_json(o, root, NULL, err);
    if (st < 0) gy_err_prefix(err, "%s", path);
    gy_json_free(doc);
    return st;
}

static gy_status parse_command(const gy_cmd *c, int argc, char **argv, gy_opts *o, gy_args *a, gy_err *err) {
    GY_TRY(gy_opts_parse_argv(o, argc, argv, err));
    if (a->help) return GY_OK;
    if (a->config) GY_TRY(apply_config(o, a->config, err));
    if (o->pos.len > c->max_pos)
        return gy_err_set(err, GY_E_ARG, "found the argument '%.80s' too much; usage: gyre %s %s",
                          o->pos.data[c->max_pos], c->name, c->usage);
    a->pos = o->pos.data;
    a->n_pos = o->pos.len;
    a->opts = o;
    return GY_OK;
}

static int run_command(const gy_cmd *c, int argc, char **argv, gy_arena *arena) {
    gy_args a;
    gy_err err = {0};
    gy_args_default(&a);
    a.arena = arena;
    a.argc = argc;
    a.argv = argv;
    gy_opts o = {.arena = arena, .groups = c->groups, .values = &a};
    int rc;
    if (parse_command(c, argc, argv, &o, &a, &err) < 0) {
        rc = usage_error(c->name, &err);
    } else if (a.help) {
        rc = print_help(c);
    } else {
        gy_log_set_level((gy_log_level)a.log_level);
        rc = gy_cli_finish(c->main(&a));
    }
    gy_opts_fini(&o);
    return rc;
}

static int is_any(const char *s, const char *a, const char *b) {
    return !strcmp(s, a) || !strcmp(s, b);
}

/* A command of two words: its options have nothing in common with those of bench engine. */
static int is_bench_serve(int argc, char **argv) {
    return argc > 1 && !strcmp(argv[0], "bench") && !strcmp(argv[1], "serve");
}

static int dispatch(int argc, char **argv, gy_arena *arena) {
    if (argc < 2) {
        print_help(NULL);
        return GY_CLI_USAGE;
    }
    const char *name = argv[1];
    if (is_any(name, "help", "--help") || !strcmp(name, "-h")) {
        const gy_cmd *c = argc > 2 ? gy_cmd_find(argv[2]) : NULL;
        if (is_bench_serve(argc - 2, argv + 2)) c = &gy_cmd_bench_serve;
        if (argc > 2 && !strcmp(argv[2], gy_cmd_worker.name)) c = &gy_cmd_worker;
        return argc > 2 && !c ? unknown_command(argv[2]) : print_help(c);
    }
    if (is_any(name, "--version", "version")) {
        gy_cli_puts("gyre " GY_VERSION "\n");
        return gy_cli_finish(GY_CLI_OK);
    }
    if (!strcmp(name, gy_cmd_worker.name)) return run_command(&gy_cmd_worker, argc - 2, argv + 2, arena);
    const gy_cmd *c = gy_cmd_find(name);
    if (!c) return unknown_command(name);
    if (is_bench_serve(argc - 1, argv + 1)) return run_command(&gy_cmd_bench_serve, argc - 3, argv + 3, arena);
    return run_command(c, argc - 2, argv + 2, arena);
}

int gy_cli_main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN); /* a write then fails with EPIPE, and gy_cli_finish ends quietly */
    gy_arena *arena = gy_arena_create(GY_MEM_CLI, 1 << 16);
    if (!arena) {
        gy_err err = {.status = GY_E_NOMEM, .msg = "no memory"};
        return gy_cli_fail(&err);
    }
    int rc = dispatch(argc, argv, arena);
    gy_arena_destroy(arena);
    return rc;
}
