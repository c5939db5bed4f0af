// simt.cuh: everything a kernel file needs to run on a GPU and on a CPU from one source. docs/simt.md is the contract.
#pragma once
#include "async_copy.cuh"
#include "bfloat16.h"
#include "collectives.cuh"
#include "device.h"
#include "launch.cuh"
#include "math.cuh"
#include "mma.cuh"
#include "shared.cuh"
#include "target.h"
#include "vec.cuh"
