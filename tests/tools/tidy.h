/* What clang's analyzer needs to know about functions that it cannot see into: gy_err_set returns the code that it was
 * given, so a failure path stays one. Included by tidy.sh in front of every file but src/base/status.c. */
#include "base/status.h"

#define gy_err_set(err, code, ...) ((void)gy_err_set(err, code, __VA_ARGS__), (code))
