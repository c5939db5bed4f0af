// common.cuh: what every kernel file includes.
#pragma once
#include "kernels/simt/simt.cuh"
#include "system/error.h"

using simt::add;
using simt::ceil_div;
using simt::launch;
using simt::launch_rows;
using simt::load;
using simt::load_raw;
using simt::load_streaming;
using simt::narrow;
using simt::Sigmoids;
using simt::stay_narrow;
using simt::store;
using simt::store_around_caches;
using simt::store_raw;
using simt::store_streaming;
using simt::Vec;
using simt::widen;
