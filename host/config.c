/* The structs that callers configure with: taken as far as they reach, checked field by field. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

/* What a field may hold beside "undefined". since: a caller of an older version has not meant it. */
typedef struct { const char *name; size_t offset; unsigned since; int low, high; } nh_field;

#define FIELD(name, since, low, high) {#name, offsetof(ncclConfig_t, name), since, low, high}
static const nh_field fields[] = {
  FIELD(blocking, 21400, 0, 1),
  FIELD(cgaClusterSize, 21700, 0, INT_MAX),
  FIELD(minCTAs, 21700, 1, INT_MAX),
  FIELD(maxCTAs, 21700, 1, INT_MAX),
  FIELD(splitShare, 0, 0, 1),
  FIELD(collnetEnable, 22700, 0, 1),
  FIELD(CTAPolicy, 22700, 0, 3),
  FIELD(shrinkShare, 22700, 0, 1),
  FIELD(nvlsCTAs, 22700, 1, INT_MAX),
  FIELD(nChannelsPerNetPeer, 22800, 1, 64),
  FIELD(nvlinkCentricSched, 22800, 0, 1),
  FIELD(graphUsageMode, 22900, 0, 2),
  FIELD(numRmaCtx, 22900, 0, INT_MAX),
  FIELD(maxP2pPeers, 23000, 1, INT_MAX),
  FIELD(graphStreamOrdering, 23005, 0, 1),
  FIELD(launchOrderImplicit, 23100, 0, 1),
  FIELD(numRmaSig, 23100, 0, NH_SIGNALS),
  FIELD(rmaEagerInit, 23100, 0, 1),
  FIELD(hostCftMode, 23100, 1, 3),
};
#undef FIELD

static ncclResult_t check(const ncclConfig_t *config, const char *function)
{
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    int value;
    memcpy(&value, (const char *)config + fields[i].offset, sizeof value);
    if (value == NCCL_CONFIG_UNDEF_INT || config->version < fields[i].since || (value >= fields[i].low && value <= fields[i].high)) continue;
    if (fields[i].high == INT_MAX)
      return nh_error(ncclInvalidArgument, nickelKindNone, "%s: %s in the config is %d, must be %d or more", function, fields[i].name, value, fields[i].low);
    return nh_error(ncclInvalidArgument, nickelKindNone, "%s: %s in the config is %d, must be %d to %d", function, fields[i].name, value, fields[i].low,
                    fields[i].high);
  }
  if (config->version < 21700) return ncclSuccess;
  int mode = config->version < 23203 ? NCCL_CONFIG_UNDEF_INT : config->nvlsHostMode, bits = ncclNvlsHostModeDisableTransport | ncclNvlsHostModeDisableSymmetricMultimem;
  if (mode != NCCL_CONFIG_UNDEF_INT && mode != ncclNvlsHostModeDisable && (mode & ~bits))
    return nh_error(ncclInvalidArgument, nickelKindNone, "%s: nvlsHostMode in the config is %d, which has unknown bits", function, mode);
  if (config->minCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs != NCCL_CONFIG_UNDEF_INT && config->minCTAs > config->maxCTAs)
    return nh_error(ncclInvalidArgument, nickelKindNone, "%s: minCTAs in the config is %d, above maxCTAs %d", function, config->minCTAs, config->maxCTAs);
  return ncclSuccess;
}

/* The environment beats the struct, as in NCCL; without either a communicator is blocking, or as its parent. */
static void apply(const ncclConfig_t *config, nh_settings *settings)
{
  const char *text = getenv("NCCL_COMM_BLOCKING");
  if (config->blocking != NCCL_CONFIG_UNDEF_INT && config->version >= 21400) settings->blocking = config->blocking;
  if (config->numRmaSig != NCCL_CONFIG_UNDEF_INT && config->version >= 23100) settings->signals = config->numRmaSig;
  if (!text || !*text) return;
  if (strcmp(text, "0") == 0 || strcmp(text, "1") == 0) settings->blocking = *text == '1';
  else nh_refuse_value("NCCL_COMM_BLOCKING", text, "0 or 1", "the configuration decides");
}

ncclResult_t nh_settings_from(const ncclConfig_t *config, const nh_settings *parent, nh_settings *settings, const char *function)
{
  ncclConfig_t whole = NCCL_CONFIG_INITIALIZER;
  *settings = parent ? *parent : (nh_settings){.blocking = true, .signals = 1};
  nh_timeout_everywhere(); /* says what cannot be read of it now, not in the middle of a wait */
  if (config) {
    size_t size = config->size < sizeof whole ? config->size : sizeof whole;
    whole.magic = 0;
    memcpy(&whole, config, size);
    if (whole.magic != NCCL_API_MAGIC)
      return nh_error(ncclInvalidArgument, nickelKindNone, "%s: the config was not made with NCCL_CONFIG_INITIALIZER (its magic is %#x, its size %zu)", function,
                      whole.magic, config->size);
  }
  ncclResult_t result = check(&whole, function);
  if (result == ncclSuccess) apply(&whole, settings);
  return result;
}

ncclResult_t nh_check_call_config(const ncclCollConfig_t *config, const char *function)
{
  ncclCollConfig_t whole = NCCL_COLLCONFIG_INITIALIZER;
  if (!config) return ncclSuccess;
  whole.magic = 0;
  memcpy(&whole, config, config->size < sizeof whole ? config->size : sizeof whole);
  if (whole.magic != NCCL_API_MAGIC)
    return nh_error(ncclInvalidArgument, nickelKindNone, "%sConfig: the config was not made with NCCL_COLLCONFIG_INITIALIZER (its magic is %#x, its size %zu)",
                    function, whole.magic, config->size);
  if (whole.forceAlgSelection != 0 && whole.forceAlgSelection != 1)
    return nh_error(ncclInvalidArgument, nickelKindNone, "%sConfig: forceAlgSelection is %d, must be 0 or 1", function, whole.forceAlgSelection);
  if (whole.CTAPolicy != NCCL_CONFIG_UNDEF_INT && (whole.CTAPolicy < 0 || whole.CTAPolicy > 3))
    return nh_error(ncclInvalidArgument, nickelKindNone, "%sConfig: CTAPolicy is %d, must be 0 to 3", function, whole.CTAPolicy);
  return ncclSuccess;
}
