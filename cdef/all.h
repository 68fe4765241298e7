/* Every header of NCCL's API, oldest release first. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ALL_H
#define ALL_H
#include "nccl_2_0.h"
#include "nccl_2_2.h"
#include "nccl_2_3_4.h"
#include "nccl_2_3_5.h"
#include "nccl_2_4_2.h"
#include "nccl_2_7_3.h"
#include "nccl_2_10_3.h"
#include "nccl_2_11_4.h"
#include "nccl_2_13_4.h"
#include "nccl_2_14_3.h"
#include "nccl_2_17_1.h"
#include "nccl_2_18_1.h"
#include "nccl_2_19_1.h"
#include "nccl_2_22_3.h"
#include "nccl_2_23_4.h"
#include "nccl_2_24_3.h"
#include "nccl_2_27_3.h"
#include "nccl_2_28_3.h"
#include "nccl_2_28_7.h"
#include "nccl_2_29_2.h"
#include "nccl_2_29_7.h"
#include "nccl_2_30_3.h"
#include "nccl_2_30_4.h"
#include "nccl_2_30_7.h"
#include "nccl_2_31_2.h"
#include "nccl_2_32_3.h"
#include "initializers.h"

#endif
