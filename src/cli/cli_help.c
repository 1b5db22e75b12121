/* The text of --help from the option tables: two columns, wrapped at 100. */
#include "cli/cli_opts.h"

#include <string.h>

enum { HELP_COLUMN = 34, HELP_WIDTH = 100 };

static void pad_to(gy_str *out, size_t line_start, size_t column) {
    while (out->len - line_start < column) gy_str_putc(out, ' ');
}

/* Appends words of text from the present column on; lines begin at HELP_COLUMN and leave room for a parenthesis.
 * *line_start: offset of this line. */
static void put_wrapped(gy_str *out, size_t *line_start, const char *text) {
    while (*text) {
        size_t n = strcspn(text, " ");
        if (out->len - *line_start + n + 2 > HELP_WIDTH) {
            gy_str_putc(out, '\n');
            *line_start = out->len;
            pad_to(out, *line_start, HELP_COLUMN);
        } else if (out->len - *line_start > HELP_COLUMN) {
            gy_str_putc(out, ' ');
        }
        gy_str_append(out, text, n);
        text += n + strspn(text + n, " ");
    }
}

static void put_option(gy_str *out, const gy_opt *opt) {
    size_t start = out->len;
    gy_str_printf(out, "  --%s%s%s", opt->name, opt->arg ? " " : "", opt->arg ? opt->arg : "");
    if (out->len - start + 2 > HELP_COLUMN) {
        gy_str_putc(out, '\n');
        start = out->len;
    }
    pad_to(out, start, HELP_COLUMN);
    put_wrapped(out, &start, opt->help);
    if (opt->dflt) {
        put_wrapped(out, &start, "(default:");
        put_wrapped(out, &start, opt->dflt);
        gy_str_putc(out, ')');
    }
    gy_str_putc(out, '\n');
}

void gy_opts_help(const gy_opt_group *const *groups, gy_str *out) {
    for (; *groups; groups++) {
        gy_str_printf(out, "\n%s:\n", (*groups)->title);
        for (size_t i = 0; i < (*groups)->n; i++)
            if ((*groups)->opts[i].help) put_option(out, &(*groups)->opts[i]);
    }
}
