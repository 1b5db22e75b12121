/* Log lines in logfmt on one file descriptor (stderr at start): one write per line, so lines never interleave.
 *   ts=2026-11-29T17:41:07.123Z level=info area=model msg="loaded" tensors=269 bytes=2869336434
 * Levels: error = something was lost; warn = the user should change something; info = once per life event;
 * debug = per request; trace = per step. Any thread may log. The level is the one mutable global of base.
 */
#ifndef GY_BASE_LOG_H
#define GY_BASE_LOG_H

typedef enum gy_log_level { GY_LOG_ERROR, GY_LOG_WARN, GY_LOG_INFO, GY_LOG_DEBUG, GY_LOG_TRACE } gy_log_level;

void gy_log_set_level(gy_log_level level);                         /* default GY_LOG_WARN */
int gy_log_level_parse(const char *name, gy_log_level *level_out); /* 0 on success, -1 for an unknown name */
void gy_log_set_fd(int fd);                                        /* borrows fd */
int gy_log_enabled(gy_log_level level);

/* msg is printed quoted and escaped. kv_fmt (may be NULL) is appended as it is: "key=value key=value", its string
 * values must come from gy_log_quote or be free of spaces, quotes and control characters. Longer than 4096 bytes: cut.
 */
void gy_log(gy_log_level level, const char *area, const char *msg, const char *kv_fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Writes s (NULL: empty) quoted and escaped into buf, cut to fit, and returns buf: for string values of kv_fmt. */
const char *gy_log_quote(const char *s, char *buf, int cap);

#endif
