/* What all backends have in common beyond their tables. */
#include "ops/ops.h"

void gy_backend_destroy(gy_backend *be) {
    if (be) be->ops->destroy(be);
}
