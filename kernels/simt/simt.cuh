// simt.cuh: everything a kernel file needs to run on a GPU and on a CPU from one source (docs/simt.md)
#pragma once
#include "kernels/simt/async_copy.cuh"
#include "kernels/simt/bfloat16.h"
#include "kernels/simt/collectives.cuh"
#include "kernels/simt/device.h"
#include "kernels/simt/launch.cuh"
#include "kernels/simt/math.cuh"
#include "kernels/simt/mma.cuh"
#include "kernels/simt/shared.cuh"
#include "kernels/simt/target.h"
#include "kernels/simt/vec.cuh"
#include "kernels/simt/vec_products.cuh"
#include "kernels/simt/vec_sums.cuh"
