/* Rows and checks: see cli_chat_args.h. Request options have the names and ranges of `gyre run`; left out are those
 * that make no sense in a conversation (n, logprobs, gates) or that no server takes. What is not given is not sent: the
 * server's defaults hold, for a local model too.
 */
#include "cli/cli_chat_args.h"

#include "base/file.h"
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof(a)[0])
#define CHAT(member) offsetof(gy_args, chat.member)
#define REQ(member) offsetof(gy_args, req.member)
enum { BIG = 1 << 30, MAX_KEY = 4096 };

static const gy_opt chat_rows[] = {
    {"url", GY_OPT_STR, CHAT(url), "URL", 0, 0, NULL,
     "talk to that server (http://host:port) instead of opening a model: any that speaks OpenAI's API"},
    {"model", GY_OPT_STR, CHAT(model), "NAME", 0, 0, "the first that the server lists", "with --url: which model"},
    {"api-key", GY_OPT_STR, CHAT(api_key), "KEY|@FILE", 0, 0, "none",
     "with --url: the server's key, or the file whose first line it is; other users of this machine can read command "
     "lines"},
    {"cacert", GY_OPT_STR, CHAT(cacert), "FILE.pem", 0, 0, "the system's",
     "with --url: certificate authorities to trust"},
    {"insecure", GY_OPT_FLAG, CHAT(insecure), NULL, 0, 0, NULL, "with --url: do not check the server's certificate"},
    {"message", GY_OPT_LIST, CHAT(messages), "TEXT", 0, 0, NULL,
     "a message to answer; may be repeated. The program ends behind the last answer"},
    {"system", GY_OPT_STR, CHAT(system), "TEXT", 0, 0, NULL, "the text that goes before all messages"},
    {"load", GY_OPT_STR, CHAT(load), "FILE.json", 0, 0, NULL, "go on with a conversation that /save has written"},
    {"raw", GY_OPT_FLAG, CHAT(raw), NULL, 0, 0, NULL,
     "no messages: the model continues the text, as it stands (for models without a chat template)"},
    {"chat-template", GY_OPT_STR, offsetof(gy_args, chat_template), "FILE", 0, 0, "the model's own",
     "a Jinja template that makes a prompt of messages"},
    {"enable-thinking", GY_OPT_STR, CHAT(enable_thinking), "on|off", 0, 0, "what the chat template does",
     "let the model think before it answers, if its template knows how"},
    {"depth", GY_OPT_WORD, CHAT(depth), "line|none|color", 0, 0, "line",
     "how the loops of each token are shown on a terminal: a line under the answer, not at all, or also as the text's "
     "colour"},
    {"history", GY_OPT_STR, CHAT(history), "FILE|none", 0, 0, "~/.local/state/gyre/chat_history",
     "where the lines that were typed are kept"},
    {"max-len", GY_OPT_I32, offsetof(gy_args, max_len), "N", 1, BIG, "the model's context, or what the KV memory holds",
     "longest conversation in tokens"},
    {"config", GY_OPT_STR, offsetof(gy_args, config), "FILE.json", 0, 0, NULL,
     "an object with any of these options, with underscores; the command line goes first"},
};
static const gy_opt request_rows[] = {
    {"max-tokens", GY_OPT_I32, REQ(max_tokens), "N", 1, BIG, "the server's", "longest answer"},
    {"temperature", GY_OPT_F64, REQ(temperature), "T", 0, 100, "the server's", "0 takes the likeliest token"},
    {"top-k", GY_OPT_I32, REQ(top_k), "K", 0, BIG, "the server's", "draw among the K likeliest tokens"},
    {"top-p", GY_OPT_F64, REQ(top_p), "P", 0, 1, "the server's",
     "draw among the likeliest tokens that reach P together"},
    {"min-p", GY_OPT_F64, REQ(min_p), "P", 0, 1, "the server's",
     "draw among tokens at least P times as likely as the first"},
    {"repetition-penalty", GY_OPT_F64, REQ(repetition_penalty), "R", 0, 100, "the server's",
     "divide the logits of tokens in prompt or output by R (multiply negative ones)"},
    {"presence-penalty", GY_OPT_F64, REQ(presence_penalty), "P", -2, 2, "the server's",
     "take P from the logits of tokens in the output"},
    {"frequency-penalty", GY_OPT_F64, REQ(frequency_penalty), "F", -2, 2, "the server's",
     "take F from the logit of a token for each time it is in the output"},
    {"logit-bias", GY_OPT_PAIRS, REQ(logit_bias), "ID:BIAS,...", 0, 0, "none", "add to the logits of these tokens"},
    {"seed", GY_OPT_SEED, REQ(seed), "S", 0, 0, "drawn", "of the draws; the same seed gives the same text"},
    {"min-tokens", GY_OPT_I32, REQ(min_tokens), "N", 0, BIG, "0", "the first N tokens do not end the text"},
    {"ignore-eos", GY_OPT_FLAG, REQ(ignore_eos), NULL, 0, 0, NULL, "go on behind the end of the text"},
    {"stop", GY_OPT_LIST, REQ(stop), "STR", 0, 0, NULL, "end the answer before STR; may be repeated"},
    {"stop-ids", GY_OPT_IDS, REQ(stop_ids), "1,2,3", 0, 0, "none", "these tokens end the answer too"},
    {"exit", GY_OPT_STR, REQ(exit), "RULE", 0, 0, "the server's",
     "when a token leaves the loop: fixed, gate, gate_delayed, select, latent, kl, entropy, argmax"},
    {"exit-threshold", GY_OPT_F64, REQ(exit_threshold), "Q", 0, 1e6, "the rule's", "see gyre run --help"},
    {"min-loops", GY_OPT_I32, REQ(min_loops), "N", 1, BIG, "the rule's", "fewest loops of a token"},
    {"max-loops", GY_OPT_I32, REQ(max_loops), "N", 1, BIG, "the trained depth", "most loops of a token"},
    {"initial-state", GY_OPT_WORD, REQ(initial_state), "zero|noise", 0, 0, "zero", "where Huginn's loop starts"},
    {"latent-seed", GY_OPT_U64, REQ(latent_seed), "S", 0, 0, "0", "of that noise"},
    {"priority", GY_OPT_I32, REQ(priority), "P", -BIG, BIG, "0", "lower runs sooner, on a server with priorities"},
    {"cache-salt", GY_OPT_STR, REQ(cache_salt), "TEXT", 0, 0, "none",
     "only requests with the same one share cached prefixes"},
};
/* Of the scheduling's options those that one conversation can feel. */
static const gy_opt sched_rows[] = {
    {"prefill-chunk", GY_OPT_I32, offsetof(gy_args, prefill_chunk), "N", 1, BIG, "128", "prompt tokens of one pass"},
    {"fuse-loops", GY_OPT_I32, offsetof(gy_args, fuse_loops), "N", 1, GY_ENGINE_MAX_LOOPS, "1",
     "passes of one step while no token is due"},
};
const gy_opt_group gy_group_chat_sched = {"Scheduling (results do not depend on it)", sched_rows, COUNT(sched_rows)};
const gy_opt_group gy_group_chat = {"Conversation", chat_rows, COUNT(chat_rows)};
const gy_opt_group gy_group_chat_request = {"Requests (also /set NAME VALUE, with underscores)", request_rows,
                                            COUNT(request_rows)};

/* ---- what does not go together ----------------------------------------------------------------------------------- */

static gy_status check_url(const gy_args *a, gy_err *err) {
    if (a->n_pos && a->chat.url)
        return gy_err_set(err, GY_E_ARG, "--url: found with MODEL '%.80s', expected one of them", a->pos[0]);
    static const char *const remote[] = {"model", "api-key", "cacert", "insecure", NULL};
    for (const char *const *n = remote; !a->chat.url && *n; n++)
        if (gy_opts_given(a->opts, *n)) return gy_err_set(err, GY_E_ARG, "--%s: has no meaning without --url", *n);
    for (size_t g = 0; a->chat.url && a->opts->groups[g]; g++) {
        const gy_opt_group *group = a->opts->groups[g];
        if (group == &gy_group_chat || group == &gy_group_chat_request || !strcmp(group->title, "General")) continue;
        for (size_t i = 0; i < group->n; i++)
            if (gy_opts_given(a->opts, group->opts[i].name))
                return gy_err_set(err, GY_E_ARG, "--%s: has no meaning with --url, whose server decides it",
                                  group->opts[i].name);
    }
    static const char *const local[] = {"chat-template", "max-len", NULL};
    for (const char *const *n = local; a->chat.url && *n; n++)
        if (gy_opts_given(a->opts, *n))
            return gy_err_set(err, GY_E_ARG, "--%s: has no meaning with --url, whose server decides it", *n);
    return GY_OK;
}

gy_status gy_chat_args_check(const gy_args *a, gy_err *err) {
    GY_TRY(check_url(a, err));
    if (a->chat.raw && a->chat.system)
        return gy_err_set(err, GY_E_ARG, "--system: has no meaning with --raw, where there are no messages");
    if (a->chat.raw && a->chat.enable_thinking)
        return gy_err_set(err, GY_E_ARG, "--enable-thinking: has no meaning with --raw, where there is no template");
    if (a->req.exit && !strncmp(a->req.exit, "trace:", 6))
        return gy_err_set(err, GY_E_ARG, "--exit: found trace:FILE, which belongs to known prompts: use gyre run");
    const char *t = a->chat.enable_thinking;
    if (t && strcmp(t, "on") != 0 && strcmp(t, "off") != 0)
        return gy_err_set(err, GY_E_ARG, "--enable-thinking: found '%.40s', expected on or off", t);
    for (size_t i = 0; i < a->chat.messages.n; i++)
        if (!a->chat.messages.items[i].len)
            return gy_err_set(err, GY_E_ARG, "--message: found an empty text (number %zu)", i + 1);
    return GY_OK;
}

/* ---- options to settings ------------------------------------------------------------------------------------------
 */

static const void *at(const gy_args *a, const gy_opt *o) {
    return (const char *)a + o->offset;
}

static void put_list(const gy_opt_list *l, gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_arr_begin(&w);
    for (size_t i = 0; i < l->n; i++) gy_jw_str(&w, l->items[i].text, l->items[i].len);
    gy_jw_arr_end(&w);
}

/* "1:2.5,7:-1" to {"1":2.5,"7":-1}: gy_opts has checked its form. */
static void put_pairs(const char *s, gy_str *out) {
    gy_str_putc(out, '{');
    for (int in_id = 1, first = 1; *s; s++) {
        if (*s == ' ') continue;
        if (first || (in_id && s[-1] == ',')) gy_str_putc(out, '"');
        first = 0;
        if (*s == ':') {
            gy_str_puts(out, "\":");
            in_id = 0;
        } else {
            gy_str_putc(out, *s);
            if (*s == ',') in_id = 1;
        }
    }
    gy_str_putc(out, '}');
}

static void put_value(const gy_args *a, const gy_opt *o, gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    switch (o->kind) {
    case GY_OPT_I32:
        gy_jw_int(&w, *(const int32_t *)at(a, o));
        return;
    case GY_OPT_FLAG:
        gy_jw_bool(&w, *(const int *)at(a, o));
        return;
    case GY_OPT_U64:
        gy_str_printf(out, "%llu", (unsigned long long)*(const uint64_t *)at(a, o));
        return;
    case GY_OPT_SEED:
        gy_str_printf(out, "%llu", (unsigned long long)((const gy_opt_u64 *)at(a, o))->v);
        return;
    case GY_OPT_F64:
        gy_jw_f64(&w, *(const double *)at(a, o));
        return;
    case GY_OPT_WORD:
        gy_str_puts(out, *(const int *)at(a, o) ? "noise" : "zero"); /* the only one: --initial-state */
        return;
    case GY_OPT_LIST:
        put_list(at(a, o), out);
        return;
    case GY_OPT_IDS:
        gy_str_printf(out, "[%s]", *(const char *const *)at(a, o));
        return;
    case GY_OPT_PAIRS:
        put_pairs(*(const char *const *)at(a, o), out);
        return;
    default:
        gy_str_puts(out, *(const char *const *)at(a, o));
    }
}

/* A name as requests and config files have it. */
static void json_name(const char *flag, char *buf, size_t cap) {
    snprintf(buf, cap, "%s", flag);
    for (char *c = buf; *c; c++)
        if (*c == '-') *c = '_';
}

static gy_status apply_row(const gy_args *a, const gy_opt *o, gy_err *err, gy_chat_talk *t) {
    char name[64];
    gy_str value = {0};
    json_name(strcmp(o->name, "stop-ids") ? o->name : "stop-token-ids", name, sizeof name);
    put_value(a, o, &value);
    gy_status st = value.failed ? gy_err_set(err, GY_E_NOMEM, "no memory for settings")
                                : gy_chat_set(t, name, gy_str_z(&value), value.len, err, NULL);
    gy_str_free(&value);
    if (st < 0) gy_cli_name_flag(err);
    return st;
}

/* The values do not tell: some defaults of `gyre run` (temperature 0) are not those of servers. */
static int was_given(const gy_args *a, const gy_jv *config, const gy_opt *o) {
    char name[64];
    json_name(o->name, name, sizeof name);
    return gy_opts_given(a->opts, o->name) || gy_jv_get(config, name) != NULL;
}

static gy_status apply_rows(const gy_args *a, const gy_jv *config, gy_err *err, gy_chat_talk *t) {
    for (size_t i = 0; i < gy_group_chat_request.n; i++) {
        const gy_opt *o = &gy_group_chat_request.opts[i];
        if (was_given(a, config, o)) GY_TRY(apply_row(a, o, err, t));
    }
    return GY_OK;
}

gy_status gy_chat_args_apply(const gy_args *a, gy_err *err, gy_chat_talk *t) {
    gy_json *config = NULL;
    if (a->config) GY_TRY(gy_json_read(a->config, NULL, err, &config));
    gy_status st = apply_rows(a, config ? gy_json_root(config) : NULL, err, t);
    gy_json_free(config);
    if (st < 0) return st;
    const char *think = a->chat.enable_thinking;
    if (think) GY_TRY(gy_chat_set(t, "enable_thinking", think, strlen(think), err, NULL));
    t->raw = a->chat.raw;
    if (a->chat.system) gy_str_puts(&t->system, a->chat.system);
    return t->system.failed ? gy_err_set(err, GY_E_NOMEM, "no memory for --system") : GY_OK;
}

gy_status gy_chat_args_key(const gy_args *a, gy_err *err, const char **out) {
    const char *key = a->chat.api_key;
    gy_str file = {0};
    if (key && key[0] == '@') {
        if (gy_file_read(key + 1, MAX_KEY, err, &file) < 0) {
            gy_str_free(&file);
            return gy_err_prefix(err, "--api-key");
        }
        key = gy_arena_strndup(a->arena, gy_str_z(&file), strcspn(gy_str_z(&file), "\r\n"));
        gy_str_free(&file);
        if (!key) return gy_err_set(err, GY_E_NOMEM, "--api-key: no memory");
    }
    if (key && !key[0]) return gy_err_set(err, GY_E_ARG, "--api-key: found an empty key");
    *out = key;
    return GY_OK;
}
