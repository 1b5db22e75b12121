/* See cli_chat_talk.h. */
#include "cli/cli_chat_talk.h"

#include <stdio.h>
#include <string.h>

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static void turn_fini(gy_chat_turn *t) {
    gy_str_free(&t->question);
    gy_str_free(&t->answer);
    gy_str_free(&t->reasoning);
    *t = (gy_chat_turn){.stopped = 0};
}

static void turns_drop(gy_chat_talk *t, size_t from, size_t n) {
    for (size_t i = from; i < from + n; i++) turn_fini(&t->turns.data[i]);
    memmove(t->turns.data + from, t->turns.data + from + n, (t->turns.len - from - n) * sizeof *t->turns.data);
    t->turns.len -= n;
}

static void setting_fini(gy_chat_setting *s) {
    gy_mem_free(s->name);
    gy_json_free(s->doc);
}

void gy_chat_talk_fini(gy_chat_talk *t) {
    if (t->turns.len) turns_drop(t, 0, t->turns.len);
    gy_vec_free(&t->turns);
    for (size_t i = 0; i < t->settings.len; i++) setting_fini(&t->settings.data[i]);
    gy_vec_free(&t->settings);
    gy_str_free(&t->system);
}

gy_status gy_chat_talk_add(gy_chat_talk *t, gy_chat_turn *turn, gy_err *err) {
    int bad = turn->question.failed || turn->answer.failed || turn->reasoning.failed;
    if (bad || gy_vec_push(&t->turns, GY_MEM_CLI, *turn)) {
        turn_fini(turn);
        return gy_err_set(err, GY_E_NOMEM, "no memory for the conversation");
    }
    *turn = (gy_chat_turn){.stopped = 0};
    return GY_OK;
}

void gy_chat_talk_trim(gy_chat_talk *t, size_t n) {
    if (t->turns.len) turns_drop(t, 0, n < t->turns.len ? n : t->turns.len);
}

int gy_chat_talk_undo(gy_chat_talk *t, gy_str *question_out) {
    if (!t->turns.len) return -1;
    gy_chat_turn *last = &t->turns.data[t->turns.len - 1];
    gy_str_free(question_out);
    *question_out = last->question;
    last->question = (gy_str){0};
    turns_drop(t, t->turns.len - 1, 1);
    return 0;
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static const char *const template_names[] = {"enable_thinking", "thinking", NULL}; /* of chat_template_kwargs */
static const char *const own_names[] = {"messages", "prompt", "model", "stream", "stream_options", "n", NULL};

static int is_among(const char *name, const char *const *list) {
    for (; *list; list++)
        if (!strcmp(name, *list)) return 1;
    return 0;
}

/* JSON's name of a row: "max_tokens" for "max-tokens"; stop ids have the API's own name. */
static void json_name(const gy_opt *o, char *buf, size_t cap) {
    snprintf(buf, cap, "%s", strcmp(o->name, "stop-ids") ? o->name : "stop-token-ids");
    for (char *c = buf; *c; c++)
        if (*c == '-') *c = '_';
}

static const gy_opt *row_of(const char *name) {
    for (size_t i = 0; i < gy_group_chat_request.n; i++) {
        char buf[64];
        json_name(&gy_group_chat_request.opts[i], buf, sizeof buf);
        if (!strcmp(buf, name)) return &gy_group_chat_request.opts[i];
    }
    return NULL;
}

static gy_status refuse_near(const char *name, gy_err *err) {
    char buf[64][64];
    const char *names[64];
    size_t n = 0;
    for (; n < gy_group_chat_request.n && n < 60; n++) {
        json_name(&gy_group_chat_request.opts[n], buf[n], sizeof buf[n]);
        names[n] = buf[n];
    }
    for (const char *const *t = template_names; *t; t++) names[n++] = *t;
    const char *near = gy_suggest(name, names, n);
    return near ? gy_err_set(err, GY_E_ARG, "unknown setting %.60s; did you mean %s?", name, near) : GY_OK;
}

static const char *word_value(const char *v, size_t n) {
    static const char *const words[][2] = {{"on", "true"}, {"yes", "true"}, {"off", "false"}, {"no", "false"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i][0]) == n && !memcmp(v, words[i][0], n)) return words[i][1];
    return NULL;
}

/* {"v": VALUE} if that is one member, else NULL: the text is not JSON. */
static gy_json *wrapped(const char *value, size_t n) {
    gy_str s = {0};
    gy_json *doc = NULL;
    gy_str_puts(&s, "{\"v\":");
    gy_str_append(&s, value, n);
    gy_str_putc(&s, '}');
    if (!s.failed) (void)gy_json_parse(gy_str_z(&s), s.len, NULL, NULL, &doc);
    gy_str_free(&s);
    if (doc && gy_jv_len(gy_json_root(doc)) == 1) return doc;
    gy_json_free(doc);
    return NULL;
}

static gy_json *wrapped_text(const char *value, size_t n) {
    gy_str s = {0};
    gy_jw w;
    gy_jw_init(&w, &s);
    gy_jw_str(&w, value, n);
    gy_json *doc = s.failed ? NULL : wrapped(gy_str_z(&s), s.len);
    gy_str_free(&s);
    return doc;
}

static const gy_jv *value_of(const gy_json *doc) {
    return gy_jv_get(gy_json_root(doc), "v");
}

static gy_status check_range(const gy_opt *o, const gy_jv *v, const char *name, gy_err *err) {
    int whole = o->kind == GY_OPT_I32;
    gy_jtype t = gy_jv_type(v);
    double x = gy_jv_num(v, 0);
    if (t != GY_J_INT && (whole || t != GY_J_REAL))
        return gy_err_set(err, GY_E_ARG, "%s: found %s, expected a%s number", name, gy_jtype_name(t),
                          whole ? " whole" : "");
    if (x < o->min || x > o->max)
        return gy_err_set(err, GY_E_ARG, "%s: found %g, expected %g to %g", name, x, o->min, o->max);
    return GY_OK;
}

static gy_status check_type(const gy_opt *o, const gy_jv *v, const char *name, gy_err *err) {
    gy_jtype t = gy_jv_type(v);
    const char *want = NULL;
    switch (o->kind) {
    case GY_OPT_I32:
    case GY_OPT_F64:
        return check_range(o, v, name, err);
    case GY_OPT_U64:
    case GY_OPT_SEED:
        if (t != GY_J_INT || gy_jv_int(v, -1) < 0) want = "a whole number from 0 to 2^63 - 1";
        break;
    case GY_OPT_FLAG:
        if (t != GY_J_BOOL) want = "true or false";
        break;
    case GY_OPT_LIST:
        if (t != GY_J_STRING && t != GY_J_ARRAY) want = "a text or a list of texts";
        break;
    case GY_OPT_IDS:
        if (t != GY_J_ARRAY) want = "a list [1,2]";
        break;
    case GY_OPT_PAIRS:
        if (t != GY_J_OBJECT) want = "an object {\"ID\": BIAS}";
        break;
    case GY_OPT_WORD:
        if (t != GY_J_STRING || gy_opt_word_index(o->arg, gy_jv_str(v, NULL), strlen(gy_jv_str(v, NULL))) < 0)
            want = o->arg;
        break;
    default:
        if (t != GY_J_STRING) want = "a text";
    }
    return want ? gy_err_set(err, GY_E_ARG, "%s: found %s, expected %s", name, gy_jtype_name(t), want) : GY_OK;
}

/* A text stays one where the row wants it, whatever it looks like: --cache-salt 7. */
static gy_json *parse_value(const gy_opt *row, const char *value, size_t n) {
    int is_text = row && (row->kind == GY_OPT_STR || row->kind == GY_OPT_WORD);
    const char *word = is_text || (row && row->kind != GY_OPT_FLAG) ? NULL : word_value(value, n);
    gy_json *doc = is_text && value[0] != '"' ? NULL : wrapped(word ? word : value, word ? strlen(word) : n);
    return doc ? doc : wrapped_text(value, n);
}

static gy_chat_setting *find(const gy_chat_talk *t, const char *name) {
    for (size_t i = 0; i < t->settings.len; i++)
        if (!strcmp(t->settings.data[i].name, name)) return &t->settings.data[i];
    return NULL;
}

static void unset(gy_chat_talk *t, const char *name) {
    gy_chat_setting *s = find(t, name);
    if (!s) return;
    setting_fini(s);
    memmove(s, s + 1, (size_t)(t->settings.data + t->settings.len - s - 1) * sizeof *s);
    t->settings.len--;
}

static gy_status put_setting(gy_chat_talk *t, const char *name, gy_json *doc, gy_err *err) {
    gy_chat_setting *s = find(t, name);
    if (s) {
        gy_json_free(s->doc);
        s->doc = doc;
        return GY_OK;
    }
    gy_chat_setting one = {gy_mem_strdup(GY_MEM_CLI, name), doc};
    if (one.name && !gy_vec_push(&t->settings, GY_MEM_CLI, one)) return GY_OK;
    setting_fini(&one);
    return gy_err_set(err, GY_E_NOMEM, "no memory for settings");
}

gy_status gy_chat_set(gy_chat_talk *t, const char *name, const char *value, size_t n, gy_err *err, int *known_out) {
    const gy_opt *row = row_of(name);
    int known = row || is_among(name, template_names);
    if (is_among(name, own_names)) return gy_err_set(err, GY_E_ARG, "%s: chat fills this field itself", name);
    if (!known) GY_TRY(refuse_near(name, err));
    if (n) {
        gy_json *doc = parse_value(row, value, n);
        if (!doc) return gy_err_set(err, GY_E_NOMEM, "no memory for settings");
        gy_status st = row ? check_type(row, value_of(doc), name, err) : GY_OK;
        if (st < 0) {
            gy_json_free(doc);
            return st;
        }
        GY_TRY(put_setting(t, name, doc, err));
    } else {
        unset(t, name);
    }
    if (known_out) *known_out = known;
    return GY_OK;
}

int64_t gy_chat_setting_int(const gy_chat_talk *t, const char *name, int64_t dflt) {
    const gy_chat_setting *s = find(t, name);
    return s ? gy_jv_int(value_of(s->doc), dflt) : dflt;
}

void gy_chat_settings_put(const gy_chat_talk *t, gy_str *out) {
    for (size_t i = 0; i < t->settings.len; i++) {
        gy_jw w;
        gy_str_printf(out, "  %-20s ", t->settings.data[i].name);
        gy_jw_init(&w, out);
        gy_jw_value(&w, value_of(t->settings.data[i].doc));
        gy_str_putc(out, '\n');
    }
}

/* ---- the body of a request --------------------------------------------------------------------------------------- */

static void put_message(gy_jw *w, const char *role, const char *text, size_t n, int stopped) {
    gy_jw_obj_begin(w);
    gy_jw_key(w, "role");
    gy_jw_strz(w, role);
    gy_jw_key(w, "content");
    gy_jw_str(w, text, n);
    if (stopped) {
        gy_jw_key(w, "stopped");
        gy_jw_bool(w, 1);
    }
    gy_jw_obj_end(w);
}

static void put_messages(const gy_chat_talk *t, int in_file, gy_jw *w) {
    if (t->system.len) put_message(w, "system", gy_str_z(&t->system), t->system.len, 0);
    for (size_t i = 0; i < t->turns.len; i++) {
        const gy_chat_turn *u = &t->turns.data[i];
        put_message(w, "user", gy_str_z(&u->question), u->question.len, 0);
        put_message(w, "assistant", gy_str_z(&u->answer), u->answer.len, in_file && u->stopped);
    }
}

static void put_prompt(const gy_chat_talk *t, const char *question, size_t n, gy_jw *w) {
    gy_str all = {0};
    for (size_t i = 0; i < t->turns.len; i++) {
        const gy_chat_turn *u = &t->turns.data[i];
        gy_str_append(&all, gy_str_z(&u->question), u->question.len);
        gy_str_append(&all, gy_str_z(&u->answer), u->answer.len);
    }
    gy_str_append(&all, question, n);
    gy_jw_key(w, "prompt");
    gy_jw_str(w, gy_str_z(&all), all.len);
    if (all.failed) w->out->failed = 1;
    gy_str_free(&all);
}

static void put_settings(const gy_chat_talk *t, gy_jw *w) {
    int n_kwarg = 0;
    for (size_t i = 0; i < t->settings.len; i++) {
        const gy_chat_setting *s = &t->settings.data[i];
        if (is_among(s->name, template_names)) {
            n_kwarg++;
            continue;
        }
        gy_jw_key(w, s->name);
        gy_jw_value(w, value_of(s->doc));
    }
    if (!n_kwarg || t->raw) return;
    gy_jw_key(w, "chat_template_kwargs");
    gy_jw_obj_begin(w);
    for (size_t i = 0; i < t->settings.len; i++) {
        const gy_chat_setting *s = &t->settings.data[i];
        if (!is_among(s->name, template_names)) continue;
        gy_jw_key(w, s->name);
        gy_jw_value(w, value_of(s->doc));
    }
    gy_jw_obj_end(w);
}

void gy_chat_talk_body(const gy_chat_talk *t, const char *model, const char *question, size_t n, gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, "model");
    gy_jw_strz(&w, model);
    if (t->raw) {
        put_prompt(t, question, n, &w);
    } else {
        gy_jw_key(&w, "messages");
        gy_jw_arr_begin(&w);
        put_messages(t, 0, &w);
        put_message(&w, "user", question, n, 0);
        gy_jw_arr_end(&w);
    }
    gy_jw_key(&w, "stream");
    gy_jw_bool(&w, 1);
    gy_jw_key(&w, "stream_options");
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, "include_usage");
    gy_jw_bool(&w, 1);
    gy_jw_obj_end(&w);
    put_settings(t, &w);
    gy_jw_obj_end(&w);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

void gy_chat_talk_write(const gy_chat_talk *t, gy_str *out) {
    gy_jw w;
    gy_jw_init(&w, out);
    gy_jw_obj_begin(&w);
    gy_jw_key(&w, "messages");
    gy_jw_arr_begin(&w);
    put_messages(t, 1, &w);
    gy_jw_arr_end(&w);
    gy_jw_obj_end(&w);
    gy_str_putc(out, '\n');
}

static gy_status bad_message(gy_err *err, size_t i, const char *what) {
    return gy_err_set(err, GY_E_FORMAT, "message %zu: %s", i + 1, what);
}

/* One message into t; question: what waits for its answer. */
static gy_status read_message(gy_chat_talk *t, const gy_jv *m, size_t i, gy_err *err, gy_str *question) {
    const gy_jv *role = gy_jv_get(m, "role");
    size_t n = 0;
    const char *text = gy_jv_str(gy_jv_get(m, "content"), &n);
    if (!text) return bad_message(err, i, "expected a text as \"content\"");
    if (gy_jv_is_str(role, "system")) {
        if (i) return bad_message(err, i, "found role system, expected it first only");
        gy_str_append(&t->system, text, n);
        return GY_OK;
    }
    if (gy_jv_is_str(role, "user")) {
        if (question->len) return bad_message(err, i, "found role user, expected an assistant's answer");
        if (!n) return bad_message(err, i, "found an empty text");
        gy_str_append(question, text, n);
        return GY_OK;
    }
    if (!gy_jv_is_str(role, "assistant")) return bad_message(err, i, "expected role system, user or assistant");
    if (!question->len) return bad_message(err, i, "found role assistant, expected a user's message before it");
    gy_chat_turn turn = {.question = *question, .stopped = gy_jv_bool(gy_jv_get(m, "stopped"), 0)};
    *question = (gy_str){0};
    gy_str_append(&turn.answer, text, n);
    return gy_chat_talk_add(t, &turn, err);
}

gy_status gy_chat_talk_read(gy_chat_talk *t, const char *text, size_t n, gy_err *err, gy_str *question_out) {
    gy_chat_talk fresh = {.raw = 0};
    gy_str question = {0};
    gy_json *doc = NULL;
    gy_status st = gy_json_parse(text, n, NULL, err, &doc);
    const gy_jv *list = gy_json_root(doc);
    if (gy_jv_type(list) == GY_J_OBJECT) list = gy_jv_get(list, "messages");
    if (st >= 0 && gy_jv_type(list) != GY_J_ARRAY)
        st = gy_err_set(err, GY_E_FORMAT, "expected a list of messages, or an object with \"messages\"");
    for (size_t i = 0; st >= 0 && i < gy_jv_len(list); i++)
        st = read_message(&fresh, gy_jv_at(list, i), i, err, &question);
    if (st >= 0 && (fresh.system.failed || question.failed)) st = gy_err_set(err, GY_E_NOMEM, "no memory for messages");
    if (st >= 0) {
        gy_chat_talk_trim(t, t->turns.len);
        gy_vec_free(&t->turns);
        gy_str_free(&t->system);
        memcpy(&t->turns, &fresh.turns, sizeof t->turns);
        t->system = fresh.system;
        fresh.turns.data = NULL;
        fresh.turns.len = 0;
        fresh.system = (gy_str){0};
        gy_str_append(question_out, gy_str_z(&question), question.len);
    }
    gy_chat_talk_fini(&fresh);
    gy_str_free(&question);
    gy_json_free(doc);
    return st < 0 ? st : GY_OK;
}
