/* Reading config.json into a description by a table of rows, strictly: a key that changes what the model computes is
 * either honoured or refused by name. Keys that no row names are ignored while they are off (false, null, 0, "", [],
 * {}) and refused otherwise, so that a switch of a future checkpoint can never be passed over in silence.
 */
#ifndef GY_MODEL_CONFIG_H
#define GY_MODEL_CONFIG_H

#include "base/json.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum gy_cfg_kind {
    GY_CFG_INT,    /* int32_t at offset, within [min, max] */
    GY_CFG_NUM,    /* double at offset, within [min, max] */
    GY_CFG_BOOL,   /* int at offset */
    GY_CFG_IGNORE, /* describes nothing that gyre computes */
    GY_CFG_OFF,    /* must be off: gyre does not honour it */
    GY_CFG_STR,    /* must equal `text` */
    GY_CFG_TRUE    /* must be true */
} gy_cfg_kind;

typedef struct gy_cfg_row {
    const char *key;
    gy_cfg_kind kind;
    int required;
    size_t offset; /* into the struct given to gy_cfg_read */
    double min, max;
    const char *text;
} gy_cfg_row;

/* Fills *obj (defaults are what it holds before). Rows: n_row of this family, then the keys common to all HF files. */
gy_status gy_cfg_read(const gy_jv *cfg, const gy_cfg_row *rows, size_t n_row, void *obj, gy_err *err);
/* eos_token_id may be an integer or a list; returns how many were stored, -1 with err set for anything else. */
int gy_cfg_read_ids(const gy_jv *v, const char *key, int32_t *ids, int cap, gy_err *err);
/* A list or an object that its family reads by itself: off, or of this type. */
gy_status gy_cfg_need_type(const gy_jv *cfg, const char *key, gy_jtype type, gy_err *err);
/* 1 for false, null, 0, "", [], {} */
int gy_cfg_is_off(const gy_jv *v);

#endif
