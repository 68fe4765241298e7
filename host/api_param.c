/* The exported functions that read the library's parameters: the environment variables that it looks at. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"

/* A number that is not set is its default; a text is empty then. */
typedef struct ncclParamHandle { const char *key; bool number; long long preset; } nh_param;

static const nh_param params[] = {
  {"NICKEL_TIMEOUT", true, 1800}, {"NICKEL_TRACE", false, 0}, {"NICKEL_FAULT", false, 0},      {"NICKEL_KERNELS", false, 0},
  {"NCCL_DEBUG", false, 0},       {"NCCL_DEBUG_FILE", false, 0}, {"NCCL_COMM_BLOCKING", true, 1},
};
enum { NPARAMS = sizeof params / sizeof params[0] };

static const nh_param *find(const char *key)
{
  for (int i = 0; i < NPARAMS; i++)
    if (strcmp(params[i].key, key) == 0) return &params[i];
  return NULL;
}

static const char *text_of(const nh_param *param)
{
  static _Thread_local char number[32]; /* lives until the thread's next call, as NCCL promises */
  const char *text = getenv(param->key);
  if (text && *text) return text;
  if (!param->number) return "";
  snprintf(number, sizeof number, "%lld", param->preset);
  return number;
}

static bool known(const nh_param *param)
{
  return param >= params && param < params + NPARAMS;
}

API(ncclResult_t, ncclParamBind, ncclParamHandle_t *out, const char *key)
{
  ENSURE(out && key, "ncclParamBind: the pointer to the %s is NULL", out ? "key" : "handle");
  const nh_param *param = find(key);
  ENSURE(param, "ncclParamBind: %s is not a parameter of this library", key);
  *out = (ncclParamHandle_t)(uintptr_t)param;
  return ncclSuccess;
}

static ncclResult_t number(const char *function, const nh_param *param, const void *out, long long low, long long high, long long *value)
{
  char *end;
  ENSURE(out && known(param), "%s: %s", function, out ? "the handle is not from ncclParamBind" : "the pointer to the value is NULL");
  ENSURE(param->number, "%s: %s is a text", function, param->key);
  errno = 0;
  *value = strtoll(text_of(param), &end, 10);
  ENSURE(!*end && !errno && *value >= low && *value <= high, "%s: %s is '%s', which does not fit the type", function, param->key, text_of(param));
  return ncclSuccess;
}

#define GET(suffix, T, low, high)                                                                                                         \
  API(ncclResult_t, ncclParamGet##suffix, ncclParamHandle_t handle, T *out)                                                               \
  {                                                                                                                                       \
    long long value;                                                                                                                      \
    TRY(number("ncclParamGet" #suffix, handle, out, low, high, &value));                                                                  \
    *out = (T)value;                                                                                                                      \
    return ncclSuccess;                                                                                                                   \
  }

GET(I8, int8_t, INT8_MIN, INT8_MAX)
GET(I16, int16_t, INT16_MIN, INT16_MAX)
GET(I32, int32_t, INT32_MIN, INT32_MAX)
GET(I64, int64_t, INT64_MIN, INT64_MAX)
GET(U8, uint8_t, 0, UINT8_MAX)
GET(U16, uint16_t, 0, UINT16_MAX)
GET(U32, uint32_t, 0, UINT32_MAX)
GET(U64, uint64_t, 0, INT64_MAX)

API(ncclResult_t, ncclParamGetStr, ncclParamHandle_t handle, const char **out)
{
  ENSURE(out && known(handle), "ncclParamGetStr: %s", out ? "the handle is not from ncclParamBind" : "the pointer to the text is NULL");
  ENSURE(!handle->number, "ncclParamGetStr: %s is a number", handle->key);
  *out = text_of(handle);
  return ncclSuccess;
}

/* The value as text, cut to maxLen bytes with its zero; len is what all of it needs. */
API(ncclResult_t, ncclParamGet, ncclParamHandle_t handle, void *out, int maxLen, int *len)
{
  ENSURE(known(handle) && (out || maxLen == 0) && maxLen >= 0, "ncclParamGet: %s", known(handle) ? "the pointer to the value is NULL, or its size is negative" : "the handle is not from ncclParamBind");
  int needed = snprintf(out, (size_t)maxLen, "%s", text_of(handle)) + 1;
  if (len) *len = needed;
  return ncclSuccess;
}

API(ncclResult_t, ncclParamGetParameter, const char *key, const char **value, int *valueLen)
{
  ENSURE(key && value, "ncclParamGetParameter: the pointer to the %s is NULL", key ? "value" : "key");
  const nh_param *param = find(key);
  ENSURE(param, "ncclParamGetParameter: %s is not a parameter of this library", key);
  *value = text_of(param);
  if (valueLen) *valueLen = (int)strlen(*value);
  return ncclSuccess;
}

API(ncclResult_t, ncclParamGetAllParameterKeys, const char ***table, int *tableLen)
{
  static _Thread_local const char *keys[NPARAMS];
  ENSURE(table && tableLen, "ncclParamGetAllParameterKeys: the pointer to the %s is NULL", table ? "length" : "table");
  for (int i = 0; i < NPARAMS; i++) keys[i] = params[i].key;
  *table = keys;
  *tableLen = NPARAMS;
  return ncclSuccess;
}

API(void, ncclParamDumpAll, void)
{
  for (int i = 0; i < NPARAMS; i++) printf("%s=%s\n", params[i].key, text_of(&params[i]));
  fflush(stdout);
}
