// launch.cuh: starts a kernel on either machine
//   launch(kernel<float>, grid, block, shared_bytes, stream, args...);
//   Throws Error if the launch is refused. On the CPU it also throws what a thread of the kernel threw,
//   and an Error for every divergence (docs/simt.md).
//   On the CPU the kernel has ended when launch returns.
#pragma once
#include "kernels/simt/collectives.cuh"
#include "kernels/simt/device.h"
#include "kernels/simt/shared.cuh"
#include "kernels/simt/target.h"
#include "system/error.h"

namespace simt {

namespace detail {
// The limits of a GPU hold on the CPU too.
inline void check_launch(dim3 grid, unsigned block, size_t shared_bytes) {
    // A block of one thread has no barriers: the CPU's width uses it where a GPU gives a row a whole block.
    if (block == 0 || block > max_block || (block != 1 && block % warp_size != 0)) {
        throw Error(fmt::format("launch: a block of {} threads; expected 1 or a multiple of {} up to {}",
                                block, warp_size, max_block));
    }
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 0xffff ||
        grid.z > 0xffff) {
        throw Error(
            fmt::format("launch: a grid of {} x {} x {} blocks; expected 1 to 2147483647 x 65535 x 65535",
                        grid.x, grid.y, grid.z));
    }
    if (shared_bytes > max_shared_bytes) {
        throw Error(fmt::format("launch: {} bytes of shared memory; expected at most {}", shared_bytes,
                                max_shared_bytes));
    }
}
}  // namespace detail

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, unsigned block, size_t shared_bytes, stream_t stream,
            Arguments... arguments) {
    static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                  "the kernel takes another number of arguments");
    detail::check_launch(grid, block, shared_bytes);
#ifdef __CUDACC__
    cudaError_t status = cudaSuccess;
    // 48 KiB are available without this attribute, and the kernel's static arrays take a part of them
    if (shared_bytes > 40 * 1024) {
        status =
            cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    }
    if (status == cudaSuccess) {
        // <<<>>> would leave its status in cudaGetLastError, where an earlier error, such as one that a
        // library met and handled, would be taken for this launch's.
        status = [&](Parameters... values) {
            void* addresses[] = {const_cast<void*>(static_cast<const void*>(&values))..., nullptr};
            return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, dim3(block), addresses,
                                    shared_bytes, stream);
        }(static_cast<Parameters>(arguments)...);
    }
    if (status != cudaSuccess) {
        cudaGetLastError();  // clears the error, which is reported here, before a library asks for it
        throw Error(fmt::format("launch: {} (grid {} x {} x {}, block {}, {} bytes of shared memory)",
                                cudaGetErrorString(status), grid.x, grid.y, grid.z, block, shared_bytes));
    }
#else
    (void)stream;
    const auto thread = [=] { kernel(static_cast<Parameters>(arguments)...); };
    cpu::run_grid(
        grid, block, shared_bytes, [](const void* closure) { (*static_cast<decltype(&thread)>(closure))(); },
        &thread);
#endif
}

// Bytes of shared memory that launch can give a block that may have `of_block` of it: all but the static
// arrays of the collectives.
constexpr size_t without_collectives(size_t of_block) { return of_block - 512; }

// The same on the GPU in use. CPU: as on sm_90.
inline size_t available_shared_bytes() {
#ifdef __CUDACC__
    int device = 0, bytes = 0;
    const bool known =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess;
    return without_collectives(known ? static_cast<size_t>(bytes) : 48 * 1024);
#else
    return without_collectives(max_shared_bytes);
#endif
}

// SMs of the GPU in use, for kernels whose blocks process several rows. CPU: as many as an H200 has.
inline unsigned multiprocessors() {
#ifdef __CUDACC__
    int device = 0, count = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    if (status != cudaSuccess) throw Error(fmt::format("multiprocessors: {}", cudaGetErrorString(status)));
    return static_cast<unsigned>(count);
#else
    return 132;
#endif
}

// Launches W threads for every row. A block holds whole rows; the last one may have threads beyond the
// last row.
template <int W, class... Parameters, class... Arguments>
void launch_rows(void (*kernel)(Parameters...), size_t rows, size_t shared_bytes, stream_t stream,
                 Arguments... arguments) {
    constexpr unsigned block = W == 1 ? 32 : W <= warp_size ? 128 : W;
    const size_t blocks = ceil_div<size_t>(rows, block / W);
    if (blocks > 0x7fffffff)
        throw Error(fmt::format("launch: {} rows need {} blocks; expected at most 2147483647", rows, blocks));
    launch(kernel, static_cast<unsigned>(blocks), block, shared_bytes, stream, arguments...);
}

}  // namespace simt
