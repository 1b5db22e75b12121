/* libedit reads through next_char, which waits for keys and signals together and decodes UTF-8 by itself, so that
 * neither a signal between two system calls nor the locale's idea of a character gets lost.
 *
 * The history file is ours and not libedit's: appended a line at a time, so that two chats at once lose nothing and a
 * crash keeps what was typed.
 */
#include "cli/cli_chat_term.h"

#include "cli/cli_args.h"
#include "cli/cli_chat_line.h"
#include "cli/cli_chat_signal.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

enum { HISTORY_LINES = 1000, HISTORY_MAX_BYTES = 1 << 20, HISTORY_KEEP_BYTES = 1 << 19, N_PASTE_BEGIN = 6 };

struct gy_chat_term {
    int lines;
    EditLine *el;
    History *hist;
    const char *prompt;          /* of this read */
    wchar_t keys[N_PASTE_BEGIN]; /* read and not yet given to libedit: [key, n_key) */
    int key, n_key;
    int broken;     /* 1 Ctrl-C, 2 the end, of this read */
    int history_fd; /* -1: none */
    gy_str pending; /* lines: bytes that were read beyond the line */
    int at_end;
    struct termios saved;
    int is_muted;
};

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static const char PASTE_ON[] = "\x1b[?2004h", PASTE_OFF[] = "\x1b[?2004l", PASTE_BEGIN[] = "\x1b[200~",
                  PASTE_END[] = "\x1b[201~";

static void say(const char *z) {
    gy_cli_puts(z);
    gy_cli_flush();
}

static void stop_process(EditLine *el) {
    el_set(el, EL_PREP_TERM, 0);
    say(PASTE_OFF);
    gy_chat_signals_hold_stop(0);
    raise(SIGTSTP); /* returns when the shell continues us */
    gy_chat_signals_hold_stop(1);
    say(PASTE_ON);
    el_set(el, EL_PREP_TERM, 1);
    el_set(el, EL_REFRESH);
}

/* 1: a byte, 0: end of input, -1: a signal that ends this read. */
static int next_byte(gy_chat_term *t, EditLine *el, unsigned char *out) {
    for (;;) {
        if (gy_chat_is_ending()) t->broken = 2;
        if (gy_chat_took_interrupt() && !t->broken) t->broken = 1;
        if (t->broken) return -1;
        if (gy_chat_took_resize()) el_resize(el);
        if (gy_chat_took_stop()) stop_process(el);
        int ready = gy_chat_wait_readable(STDIN_FILENO);
        if (!ready) continue;
        ssize_t n = ready > 0 ? read(STDIN_FILENO, out, 1) : 0;
        if (n >= 0) return (int)n;
        if (errno != EINTR && errno != EAGAIN) return 0;
    }
}

static int n_following(unsigned char lead) {
    return lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
}

/* One character from the keyboard: 1, or what next_byte says instead. */
static int next_key(EditLine *el, wchar_t *out) {
    gy_chat_term *t = NULL;
    char b[4];
    uint32_t c;
    el_get(el, EL_CLIENTDATA, &t);
    int n = next_byte(t, el, (unsigned char *)b), len = 1;
    if (n <= 0) return n;
    for (int more = n_following((unsigned char)b[0]); more > 0; more--) {
        n = next_byte(t, el, (unsigned char *)b + len);
        if (n <= 0) return n;
        len++;
    }
    gy_utf8_decode(b, (size_t)len, &c);
    *out = c == UINT32_MAX ? 0xfffd : (wchar_t)c;
    return 1;
}

/* ---- pasted text ------------------------------------------------------------------------------------------------- */

static int ends_with(const gy_str *s, const char *z) {
    size_t n = strlen(z);
    return s->len >= n && !memcmp(gy_str_z(s) + s->len - n, z, n);
}

/* Up to the paste's last mark, that included. */
static int read_to_mark(EditLine *el, gy_str *out) {
    wchar_t c;
    while (!ends_with(out, PASTE_END)) {
        if (next_key(el, &c) != 1 || out->failed) return -1;
        if (c == L'\r') c = L'\n';
        if (c >= 0x20 || c == L'\n' || c == L'\t' || c == 0x1b) gy_str_put_utf8(out, (uint32_t)c);
    }
    return 0;
}

/* Kept as it is, but for other line ends, those at its end, and controls. */
static int read_paste(EditLine *el, gy_str *out) {
    gy_str raw = {0};
    int rc = read_to_mark(el, &raw);
    const char *s = gy_str_z(&raw);
    size_t n = rc ? 0 : raw.len - (sizeof PASTE_END - 1);
    while (n && s[n - 1] == '\n') n--;
    for (size_t i = 0; i < n; i++)
        if (s[i] != 0x1b) gy_str_putc(out, s[i]);
    gy_str_free(&raw);
    return rc || out->failed ? -1 : 0;
}

static void paste(EditLine *el) {
    gy_str text = {0};
    if (!read_paste(el, &text) && text.len && !el_insertstr(el, text.data)) el_set(el, EL_REFRESH);
    gy_str_free(&text);
}

/* What libedit asks for the next character. A paste's first mark is taken out here: a function bound to it (EL_ADDFN)
 * would do, but libedit 3.1 never frees such a function's name. After ESC libedit waits for more too, so waiting for
 * the mark's rest delays nothing. */
static int next_char(EditLine *el, wchar_t *out) {
    gy_chat_term *t = NULL;
    *out = 0;
    el_get(el, EL_CLIENTDATA, &t);
    for (;;) {
        if (t->key < t->n_key) {
            *out = t->keys[t->key++];
            return 1;
        }
        t->key = t->n_key = 0;
        int same = 1;
        while (same && t->n_key < N_PASTE_BEGIN) {
            int n = next_key(el, &t->keys[t->n_key]);
            if (n <= 0) return n;
            same = t->keys[t->n_key] == (wchar_t)PASTE_BEGIN[t->n_key];
            t->n_key++;
        }
        if (!same) continue;
        t->n_key = 0;
        paste(el);
    }
}

/* ---- the history file -------------------------------------------------------------------------------------------- */

static void make_folders(char *path) {
    for (char *c = path + 1; *c; c++) {
        if (*c != '/') continue;
        *c = '\0';
        mkdir(path, 0700); /* there already, or the open tells */
        *c = '/';
    }
}

gy_status gy_chat_history_path(const char *home, const char *state_home, gy_err *err, gy_str *out) {
    if (state_home && state_home[0] == '/')
        gy_str_printf(out, "%s/gyre/chat_history", state_home);
    else if (home && home[0] == '/')
        gy_str_printf(out, "%s/.local/state/gyre/chat_history", home);
    else
        return gy_err_set(err, GY_E_IO, "there is no home folder (HOME)");
    if (out->failed) return gy_err_set(err, GY_E_NOMEM, "no memory for the history's path");
    make_folders(out->data);
    return GY_OK;
}

static void enter(gy_chat_term *t, const char *text) {
    HistEvent ev;
    if (t->hist) history(t->hist, &ev, H_ENTER, text);
}

static void enter_lines(gy_chat_term *t, const gy_str *file) {
    gy_str one = {0};
    for (size_t i = 0; i < file->len;) {
        const char *line = file->data + i, *end = memchr(line, '\n', file->len - i);
        size_t n = end ? (size_t)(end - line) : file->len - i;
        gy_str_clear(&one);
        gy_chat_history_unescape(line, n, &one);
        if (one.len && gy_utf8_valid(one.data, one.len) && !memchr(one.data, '\0', one.len)) enter(t, one.data);
        i += n + 1;
    }
    gy_str_free(&one);
}

/* The newest part of a file that has grown too long takes its place. */
static gy_status shorten(const char *path, const gy_str *keep) {
    char tmp[4096];
    if (snprintf(tmp, sizeof tmp, "%s.%d", path, (int)getpid()) >= (int)sizeof tmp) return GY_E_IO;
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return GY_E_IO;
    int ok = write(fd, keep->data, keep->len) == (ssize_t)keep->len;
    close(fd);
    if (ok && !rename(tmp, path)) return GY_OK;
    unlink(tmp);
    return GY_E_IO;
}

static void read_tail(int fd, off_t from, gy_str *out) {
    char buf[8192];
    ssize_t n;
    while ((n = pread(fd, buf, sizeof buf, from)) > 0) {
        gy_str_append(out, buf, (size_t)n);
        from += n;
    }
}

static int open_history(const char *path) {
    return open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
}

static void load_history(gy_chat_term *t, const char *path) {
    struct stat sb;
    gy_str file = {0};
    t->history_fd = open_history(path);
    if (t->history_fd < 0 || fstat(t->history_fd, &sb) || !S_ISREG(sb.st_mode)) {
        gy_cli_note("%s: the history is not kept: %s", path,
                    t->history_fd < 0 ? strerrordesc_np(errno) : "it is not a file");
        if (t->history_fd >= 0) close(t->history_fd);
        t->history_fd = -1;
        return;
    }
    int is_long = sb.st_size > HISTORY_MAX_BYTES;
    read_tail(t->history_fd, is_long ? sb.st_size - HISTORY_KEEP_BYTES : 0, &file);
    const char *first = is_long && file.len ? memchr(file.data, '\n', file.len) : NULL;
    if (first) {
        size_t skip = (size_t)(first + 1 - file.data);
        memmove(file.data, file.data + skip, file.len - skip);
        file.len -= skip;
    }
    if (file.len && !file.failed) enter_lines(t, &file);
    if (first && !file.failed && shorten(path, &file) == GY_OK) {
        close(t->history_fd);
        t->history_fd = open_history(path);
    }
    gy_str_free(&file);
}

void gy_chat_term_remember(gy_chat_term *t, const char *text) {
    if (t->lines || !text[0]) return;
    enter(t, text);
    if (t->history_fd < 0) return;
    gy_str line = {0};
    gy_chat_history_escape(text, strlen(text), &line);
    gy_str_putc(&line, '\n');
    if (line.failed || write(t->history_fd, line.data, line.len) != (ssize_t)line.len) {
        gy_cli_note("the history is not kept any more: %s", line.failed ? "no memory" : strerrordesc_np(errno));
        close(t->history_fd);
        t->history_fd = -1;
    }
    gy_str_free(&line);
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static char *prompt_text(EditLine *el) {
    gy_chat_term *t = NULL;
    el_get(el, EL_CLIENTDATA, &t);
    return (char *)(uintptr_t)t->prompt; /* libedit does not write to it */
}

static gy_status open_editor(gy_chat_term *t, gy_err *err) {
    HistEvent ev;
    t->el = el_init("gyre", stdin, stdout, stderr);
    t->hist = history_init();
    if (!t->el || !t->hist) return gy_err_set(err, GY_E_NOMEM, "the terminal's line editor cannot be opened");
    history(t->hist, &ev, H_SETSIZE, HISTORY_LINES);
    history(t->hist, &ev, H_SETUNIQUE, 1);
    t->prompt = "";
    el_set(t->el, EL_CLIENTDATA, t);
    el_set(t->el, EL_PROMPT, prompt_text);
    el_set(t->el, EL_EDITOR, "emacs");
    el_set(t->el, EL_SIGNAL, 0);
    el_set(t->el, EL_HIST, history, t->hist);
    el_set(t->el, EL_GETCFN, next_char);
    el_set(t->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(t->el, EL_BIND, "\\e[1;5C", "em-next-word", NULL);
    el_set(t->el, EL_BIND, "\\e[1;5D", "ed-prev-word", NULL);
    return GY_OK;
}

gy_status gy_chat_term_open(int lines, const char *history, gy_err *err, gy_chat_term **out) {
    gy_chat_term *t = gy_mem_alloc(GY_MEM_CLI, 1, sizeof *t);
    if (!t) return gy_err_set(err, GY_E_NOMEM, "no memory for the terminal");
    t->lines = lines;
    t->history_fd = -1;
    gy_status st = lines ? GY_OK : open_editor(t, err);
    if (st < 0) {
        gy_chat_term_close(t);
        return st;
    }
    if (!lines && history) load_history(t, history);
    *out = t;
    return GY_OK;
}

void gy_chat_term_close(gy_chat_term *t) {
    if (!t) return;
    gy_chat_term_mute(t, 0);
    if (t->el) el_end(t->el);
    if (t->hist) history_end(t->hist);
    if (t->history_fd >= 0) close(t->history_fd);
    gy_str_free(&t->pending);
    gy_mem_free(t);
}

/* ---- reading a line ---------------------------------------------------------------------------------------------- */

static gy_chat_typed read_edited(gy_chat_term *t, const char *prompt, gy_str *out) {
    int n = 0;
    t->prompt = prompt;
    t->broken = 0;
    t->key = t->n_key = 0;
    el_set(t->el, EL_PREP_TERM, 1); /* by itself it does so behind the prompt: what is typed then would appear twice */
    say(PASTE_ON);
    gy_chat_signals_hold_stop(1);
    const char *line = el_gets(t->el, &n);
    gy_chat_signals_hold_stop(0);
    if (t->broken) {
        const LineInfo *li = el_line(t->el);
        int empty = li->lastchar == li->buffer;
        say("^C\n");
        say(PASTE_OFF);
        return t->broken == 2 ? GY_CHAT_ENDING : empty ? GY_CHAT_BREAK : GY_CHAT_RESET;
    }
    say(PASTE_OFF);
    if (!line || n <= 0) {
        say("\n");
        return GY_CHAT_EOF;
    }
    while (n && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
    gy_str_append(out, line, (size_t)n);
    return out->failed ? GY_CHAT_ENDING : GY_CHAT_LINE;
}

static int take_line(gy_chat_term *t, gy_str *out) {
    char *end = t->pending.len ? memchr(t->pending.data, '\n', t->pending.len) : NULL;
    if (!end && !(t->at_end && t->pending.len)) return 0;
    size_t n = end ? (size_t)(end - t->pending.data) : t->pending.len, used = end ? n + 1 : n;
    gy_str_append(out, t->pending.data, n && t->pending.data[n - 1] == '\r' ? n - 1 : n);
    memmove(t->pending.data, t->pending.data + used, t->pending.len - used);
    t->pending.len -= used;
    return 1;
}

static gy_chat_typed read_plain(gy_chat_term *t, gy_str *out) {
    char buf[8192];
    while (!take_line(t, out)) {
        if (t->at_end) return GY_CHAT_EOF;
        if (gy_chat_is_ending() || gy_chat_took_interrupt() || t->pending.failed) return GY_CHAT_ENDING;
        int ready = gy_chat_wait_readable(STDIN_FILENO);
        if (!ready) continue;
        ssize_t n = ready > 0 ? read(STDIN_FILENO, buf, sizeof buf) : -1;
        if (n < 0 && ready > 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n < 0) return GY_CHAT_ENDING;
        if (n == 0) t->at_end = 1;
        gy_str_append(&t->pending, buf, (size_t)n);
    }
    return out->failed ? GY_CHAT_ENDING : GY_CHAT_LINE;
}

gy_chat_typed gy_chat_term_read(gy_chat_term *t, const char *prompt, gy_str *line_out) {
    gy_str_clear(line_out);
    return t->lines ? read_plain(t, line_out) : read_edited(t, prompt, line_out);
}

/* ---- while an answer runs ---------------------------------------------------------------------------------------- */

void gy_chat_term_mute(gy_chat_term *t, int on) {
    if (t->lines || t->is_muted == on) return;
    if (on) {
        if (tcgetattr(STDIN_FILENO, &t->saved)) return;
        struct termios quiet = t->saved;
        quiet.c_lflag &= ~(tcflag_t)(ECHO | ICANON);
        tcsetattr(STDIN_FILENO, TCSADRAIN, &quiet);
    } else {
        tcsetattr(STDIN_FILENO, TCSADRAIN, &t->saved);
    }
    t->is_muted = on;
}

int gy_chat_term_width(void) {
    struct winsize w;
    return !ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) && w.ws_col ? w.ws_col : 80;
}
