// planted_faults.cu: kernels in the style of ours, each right as kernel<false> and with one planted fault as
// kernel<true>.
//   test_planted_faults.cpp runs their PTX. A finding is expected at the line that ends in "finding: KERNEL".
#include "kernels/simt/async_copy.cuh"
#include "kernels/simt/bfloat16.h"
#include "kernels/simt/mma.cuh"
#include "kernels/simt/shared.cuh"
#include "kernels/simt/vec_sums.cuh"

// ---- barriers and fences

template <bool planted>
__global__ void missing_barrier(float* out,
                                const float* in) {  // of several warps, which read what the tile held before
    __shared__ float tile[64];
    const unsigned t = threadIdx.x;
    tile[t] = 0.0f;
    __syncthreads();
    tile[t] = in[t];  // finding: missing_barrier
    if (!planted) __syncthreads();
    out[t] = tile[63 - t];
}

template <bool planted>
__global__ void missing_barrier_before_reuse(float* out, const float* in) {
    __shared__ float tile[64];
    const unsigned t = threadIdx.x;
    for (unsigned row = 0; row < 2; row++) {
        tile[t] = in[row * 64 + t];
        __syncthreads();
        out[row * 64 + t] = tile[63 - t];  // finding: missing_barrier_before_reuse
        if (!planted) __syncthreads();
    }
}

template <bool planted>
__global__ void missing_warp_barrier(float* out, const float* in) {
    __shared__ float tile[32];
    const unsigned lane = threadIdx.x;
    tile[lane] = in[lane];
    if (!planted) __syncwarp();
    out[lane] = tile[31 - lane];  // finding: missing_warp_barrier
}

template <bool planted>
__global__ void missing_fence(float* out, float* partial, unsigned* ticket, const float* in) {
    if (threadIdx.x != 0) return;
    partial[blockIdx.x] = in[blockIdx.x];
    if (!planted) __threadfence();
    if (atomicInc(ticket, gridDim.x - 1) != gridDim.x - 1) return;
    float sum = 0.0f;
    for (unsigned block = 0; block < gridDim.x; block++) sum += partial[block];  // finding: missing_fence
    *out = sum;
}

template <bool planted>
__global__ void missing_barrier_before_fence(float* out, float* partial, unsigned* ticket, const float* in) {
    __shared__ bool is_last;
    const unsigned t = threadIdx.x, all = gridDim.x * blockDim.x;
    partial[blockIdx.x * blockDim.x + t] = in[blockIdx.x * blockDim.x + t];
    if (!planted) __syncthreads();
    if (t == 0) {
        __threadfence();
        is_last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last || t != 0) return;
    float sum = 0.0f;
    for (unsigned i = 0; i < all; i++) sum += partial[i];  // finding: missing_barrier_before_fence
    *out = sum;
}

template <bool planted>
__global__ void two_blocks_one_word(float* out, const float* in) {
    const unsigned i = (planted ? 0 : blockIdx.x * blockDim.x) + threadIdx.x;
    out[i] = in[i];  // finding: two_blocks_one_word
}

template <bool planted>
__global__ void block_reads_anothers_output(float* out, const float* in) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i];
    __threadfence();
    __syncthreads();
    if (planted && blockIdx.x == 1 && threadIdx.x == 5)
        out[i] += out[2];  // finding: block_reads_anothers_output
}

template <bool planted>
__global__ void warp_without_barrier(float* out, const float* in) {
    __shared__ float sums[2];
    const unsigned t = threadIdx.x;
    if (t % 32 == 0) sums[t / 32] = in[t];
    if (!planted || t < 32) __syncthreads();  // finding: warp_without_barrier
    if (t == 0) out[0] = sums[0];
}

template <bool planted>
__global__ void lane_ended_before_barrier(float* out, const float* in, unsigned n) {
    __shared__ float tile[64];
    const unsigned t = threadIdx.x;
    if (planted && t >= n) return;
    tile[t] = t < n ? in[t] : 0.0f;
    __syncthreads();  // finding: lane_ended_before_barrier
    if (t < n) out[t] = tile[n - 1 - t];
}

// ---- shuffles

template <bool planted>
__global__ void shuffle_in_branch(float* out, const float* in) {
    const unsigned lane = threadIdx.x;
    float value = in[lane];
    if (!planted || lane < 16) value += __shfl_xor_sync(0xffffffffu, value, 1);  // finding: shuffle_in_branch
    out[lane] = value;
}

template <bool planted>
__global__ void shuffle_from_absent_lane(float* out, const float* in) {
    const unsigned lane = threadIdx.x;
    float value = in[lane];
    if (lane < 16)
        value += __shfl_xor_sync(0xffffu, value, planted ? 16 : 8);  // finding: shuffle_from_absent_lane
    out[lane] = value;
}

template <bool planted>
__global__ void shuffle_without_oneself(float* out, const float* in) {
    const unsigned lane = threadIdx.x;
    out[lane] =
        __shfl_xor_sync(planted ? 0xffffu : 0xffffffffu, in[lane], 1);  // finding: shuffle_without_oneself
}

// ---- tensor cores: out (16, 8) = left (16, 16) * right (16, 8), whose transpose is given

template <int rows_too_far, int columns_too_far, bool swapped_left, bool swapped_right>
__device__ void product(float* out, const bfloat16* left, const bfloat16* right) {
    __shared__ __align__(16) bfloat16 tile[16 * 16];
    const unsigned lane = threadIdx.x, row = lane / 4, column = lane % 4 * 2;
    for (unsigned i = lane; i < 256; i += 32) tile[i] = left[i];
    __syncwarp();
    const bfloat16* const from = tile + (lane % 16 + rows_too_far) * 16 + lane / 16 * 8 + columns_too_far;
    auto a = simt::ldmatrix(from);  // finding: product
    if (swapped_left) a = {a.x[0], a.x[2], a.x[1], a.x[3]};
    const uint32_t b0 = simt::load_pair(right + row * 16 + column),
                   b1 = simt::load_pair(right + row * 16 + column + 8);
    simt::Vec<float, 4> sums{};
    simt::mma(sums, a, swapped_right ? b1 : b0, swapped_right ? b0 : b1);
    for (unsigned k = 0; k < 4; k++) out[(row + k / 2 * 8) * 8 + column + k % 2] = sums.x[k];
}
template <bool planted>
__global__ void misaligned_matrix(float* out, const bfloat16* left, const bfloat16* right) {
    product<0, planted ? 4 : 0, false, false>(out, left, right);  // finding: misaligned_matrix
}
template <bool planted>
__global__ void matrix_out_of_bounds(float* out, const bfloat16* left, const bfloat16* right) {
    product<planted ? 1 : 0, 0, false, false>(out, left, right);  // finding: matrix_out_of_bounds
}
template <bool planted>
__global__ void swapped_left_operand(float* out, const bfloat16* left, const bfloat16* right) {
    product<0, 0, planted, false>(out, left, right);
}
template <bool planted>
__global__ void swapped_right_operand(float* out, const bfloat16* left, const bfloat16* right) {
    product<0, 0, false, planted>(out, left, right);
}

// ---- places in memory

template <bool planted>
__global__ void past_the_row(float* out, const float* in) {
    out[threadIdx.x] = in[threadIdx.x + planted];  // finding: past_the_row
}

template <bool planted>
__global__ void write_past_the_row(float* out, const float* in) {
    out[threadIdx.x + planted] = in[threadIdx.x];  // finding: write_past_the_row
}

template <bool planted>
__global__ void misaligned_load(float* out, const float* in) {
    const float* const from = in + threadIdx.x * 4 + (planted && threadIdx.x == 3 ? 2 : 0);
    out[threadIdx.x] = simt::sum(simt::load<4>(from));  // finding: misaligned_load
}

template <bool planted>
__global__ void write_into_gap(float* arena) {
    arena[threadIdx.x + planted] = 1.0f;  // finding: write_into_gap
}

template <bool planted>
__global__ void read_of_gap(float* out, const float* arena) {
    out[threadIdx.x] = arena[threadIdx.x + planted];  // finding: read_of_gap
}

template <bool planted>
__global__ void past_a_shared_array(float* out, const float* in) {
    simt::SharedMemory shared;
    float* const first = shared.take<float>(32);
    __shared__ float fixed[32];
    first[threadIdx.x] = fixed[threadIdx.x] = in[threadIdx.x];
    __syncwarp();
    out[threadIdx.x] =
        first[31 - threadIdx.x] + fixed[31 - threadIdx.x + planted];  // finding: past_a_shared_array
}

template <bool planted>
__global__ void past_dynamic_memory(float* out, const float* in) {
    simt::SharedMemory shared;
    float* const tile = shared.take<float>(32);
    tile[threadIdx.x + planted] = in[threadIdx.x];  // finding: past_dynamic_memory
    __syncwarp();
    out[threadIdx.x] = planted ? 0.0f : tile[31 - threadIdx.x];
}

template <bool planted>
__global__ void past_a_local_array(float* out, const unsigned* places) {
    float mine[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    for (unsigned i = 0; i < 4; i++)
        mine[places[i] + (planted && threadIdx.x == 7)] += 1.0f;  // finding: past_a_local_array
    out[threadIdx.x] = mine[places[0]] + mine[places[1]];
}

// ---- memory that holds nothing yet

template <bool planted>
__global__ void global_never_written(float* out, const float* in, const float* nothing) {
    out[threadIdx.x] = planted ? nothing[threadIdx.x] : in[threadIdx.x];  // finding: global_never_written
}

template <bool planted>
__global__ void counter_never_zeroed(unsigned* counter, unsigned* nothing) {
    atomicAdd(planted ? nothing : counter, 1u);  // finding: counter_never_zeroed
}

template <bool planted>
__global__ void shared_never_written(float* out, const float* in) {
    __shared__ float tile[64];
    if (!planted || threadIdx.x != 9) tile[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[63 - threadIdx.x];  // finding: shared_never_written
}

template <bool planted>
__global__ void local_never_written(float* out, const unsigned* places) {
    float mine[4];
    for (unsigned i = 0; i < 4 - planted; i++) mine[places[i]] = 1.0f;
    out[threadIdx.x] = mine[places[3]];  // finding: local_never_written
}

template <bool planted>
__global__ void read_before_copy_arrives(float* out, const float* in) {
    __shared__ __align__(16) float tile[128];
    simt::cp_async<4>(tile + threadIdx.x * 4, in + threadIdx.x * 4, true);
    simt::cp_async_commit();
    if (!planted) simt::cp_async_wait<0>();
    out[threadIdx.x] = tile[threadIdx.x * 4 + 1];  // finding: read_before_copy_arrives
}

template <bool planted>
__global__ void wait_for_older_copy(float* out, const float* in) {
    __shared__ __align__(16) float tile[2][128];
    for (unsigned k = 0; k < 2; k++) {
        simt::cp_async<4>(tile[k] + threadIdx.x * 4, in + threadIdx.x * 4, true);
        simt::cp_async_commit();
    }
    simt::cp_async_wait<planted ? 1 : 0>();
    __syncwarp();
    out[threadIdx.x] =
        tile[0][127 - threadIdx.x] + tile[1][127 - threadIdx.x];  // finding: wait_for_older_copy
}

template <bool planted>
__global__ void anothers_copy_without_barrier(float* out, const float* in) {
    __shared__ __align__(16) float tile[128];
    simt::cp_async<4>(tile + threadIdx.x * 4, in + threadIdx.x * 4, true);
    simt::cp_async_commit();
    simt::cp_async_wait<0>();
    if (!planted) __syncwarp();
    out[threadIdx.x] = tile[127 - threadIdx.x];  // finding: anothers_copy_without_barrier
}

// ---- memory that has been freed, and two streams

template <bool planted>
__global__ void reads(float* out, const float* in) {
    out[threadIdx.x] = in[threadIdx.x];  // finding: reads
}

// Naming them makes nvcc compile them.
#define BOTH(kernel) reinterpret_cast<const void*>(kernel<false>), reinterpret_cast<const void*>(kernel<true>)
extern const void* const kernels[] = {BOTH(missing_barrier),
                                      BOTH(missing_barrier_before_reuse),
                                      BOTH(missing_warp_barrier),
                                      BOTH(missing_fence),
                                      BOTH(missing_barrier_before_fence),
                                      BOTH(two_blocks_one_word),
                                      BOTH(block_reads_anothers_output),
                                      BOTH(warp_without_barrier),
                                      BOTH(lane_ended_before_barrier),
                                      BOTH(shuffle_in_branch),
                                      BOTH(shuffle_from_absent_lane),
                                      BOTH(shuffle_without_oneself),
                                      BOTH(misaligned_matrix),
                                      BOTH(matrix_out_of_bounds),
                                      BOTH(swapped_left_operand),
                                      BOTH(swapped_right_operand),
                                      BOTH(past_the_row),
                                      BOTH(write_past_the_row),
                                      BOTH(misaligned_load),
                                      BOTH(write_into_gap),
                                      BOTH(read_of_gap),
                                      BOTH(past_a_shared_array),
                                      BOTH(past_dynamic_memory),
                                      BOTH(past_a_local_array),
                                      BOTH(global_never_written),
                                      BOTH(counter_never_zeroed),
                                      BOTH(shared_never_written),
                                      BOTH(local_never_written),
                                      BOTH(read_before_copy_arrives),
                                      BOTH(wait_for_older_copy),
                                      BOTH(anothers_copy_without_barrier),
                                      BOTH(reads)};
