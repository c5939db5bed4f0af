// gemm.h: the matrix products of training, in exactly the forms that the model uses, by a vendor library
//   forward:  out (N, OC) = inp (N, C) weight^T + bias, also with a weight of int8
//   backward: dinp (N, C) = dout (N, OC) weight,   dweight (OC, C) = or += dout^T inp
//   product:  out (M, N) = alpha op(a) (M, K) op(b) (K, N) + beta add (M, N), for Muon, in batches
//   All matrices are row-major and contiguous; weight is (OC, C) = (out, in). T is float or bfloat16.
//   An activation may follow forward, and its gradient backward. Either is the product's epilogue or a
//   kernel of its own, as the implementation finds faster; results in fp32 (and TF32) always have our own
//   formula, since a library's may be less exact.
//   Products accumulate in fp32. With tf32 the GPU, not the CPU, rounds fp32 inputs to 10-bit mantissas.
//   2*N*C*OC operations each; bound by arithmetic, except where N is small.
//   gemm_cublaslt.cpp (GPU) or gemm_onednn.cpp (CPU) implements this interface, whichever the build links.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/simt/bfloat16.h"
#include "kernels/simt/device.h"

// A factor of Gemm::product: the matrix that lies in memory row by row, or its transpose.
template <class T>
struct Factor {
    const T* values;
    bool transposed = false;
};

class Gemm {
public:
    // Who computes forward and backward on a CPU: the library, or packed_product.h, which widens bfloat16.
    // With a weight of int8: forward, after its conversion, or int8_product.h.
    enum class OnCpu { automatic, library, packed };  // automatic: whichever is faster on this processor
    struct Options {
        bool tf32 = false;
        // for tests; the GPU ignores them
        OnCpu fp32 = OnCpu::automatic, bf16 = OnCpu::automatic, int8 = OnCpu::automatic;
    };
    explicit Gemm(Options options);
    ~Gemm();
    Gemm(const Gemm&) = delete;

    // Bytes of scratch that any product of this shape needs. On the CPU they depend on the number of
    // threads, so call this after simt::select_device.
    template <class T>
    static size_t workspace_bytes(size_t N, size_t C, size_t OC);
    // Scratch for bias gradients and for the library: at least the largest workspace_bytes of all shapes to
    // come. The caller owns the memory, which must outlive the Gemm.
    void use_workspace(void* workspace, size_t bytes);

    // out (N, OC) = inp (N, C) weight^T + bias (OC); bias may be nullptr. With an activation this sum is
    // pre_activation (N, OC), and out = activation(pre_activation); without one pre_activation is ignored.
    template <class T>
    void forward(T* out, const T* inp, const T* weight, const T* bias, size_t N, size_t C, size_t OC,
                 stream_t stream, Activation activation = {}, T* pre_activation = nullptr);

    // forward with a weight of int8 and a scale for each of its rows (quantize.cuh). In bf16 a CPU rounds inp
    // to int8, too, where that is faster (int8_product.h); otherwise the weight is converted to T. scratch:
    // int8_scratch_bytes, aligned to 64 bytes.
    struct Int8Weight {
        const int8_t* values;
        const float* scales;
    };
    template <class T>
    void forward_int8(T* out, const T* inp, Int8Weight weight, const T* bias, size_t N, size_t C, size_t OC,
                      std::span<std::byte> scratch, stream_t stream, Activation activation = {},
                      T* pre_activation = nullptr);
    template <class T>
    static size_t int8_scratch_bytes(size_t N, size_t C, size_t OC);

    // dinp (N, C) = dout (N, OC) weight. With an activation, of which inp was the result:
    // dinp = (dout weight) * activation'(pre_activation (N, C)).
    template <class T>
    void backward_input(T* dinp, const T* dout, const T* weight, size_t N, size_t C, size_t OC,
                        stream_t stream, Activation activation = {}, const T* pre_activation = nullptr);

    // dweight (OC, C) fp32 = (or +=, if accumulate) dout^T inp;  dbias (OC) fp32 += column sums of dout;
    // dbias may be nullptr
    template <class T>
    void backward_weight(float* dweight, float* dbias, const T* dout, const T* inp, size_t N, size_t C,
                         size_t OC, bool accumulate, stream_t stream);

    struct Product {
        size_t M, N, K;
        float alpha = 1, beta = 0;
        size_t batch = 1;        // matrices of each operand, one behind the other
        bool symmetric = false;  // out and add are known to be symmetric: a CPU may compute one half of out
    };
    // out (M, N) = alpha op(a) (M, K) op(b) (K, N) + beta add (M, N), rounded once. out overlaps none of the
    // others. With beta = 0 add is not read.
    template <class T>
    void product(const Product& shape, T* out, Factor<T> a, Factor<T> b, stream_t stream,
                 const T* add = nullptr);
    // Scratch for any such product, as workspace_bytes is for the other forms.
    template <class T>
    static size_t product_workspace_bytes(size_t M, size_t N, size_t K);

    // Times the products, and chooses the GPU library's algorithm for each. On a CPU this and the functions
    // below do nothing. products() must call the functions above as training will, with the same tensors and
    // shapes. A call whose product has no choice yet first times every algorithm that the library offers, and
    // the product followed by a separate kernel in place of its epilogue; the fastest whose result agrees
    // with that of the first is chosen. This overwrites or adds to the outputs many times; then the call runs
    // once. After `seconds` no further timing begins, and products without a choice keep the library's first.
    // The host waits for each timing, and twice the size of the second-level cache is allocated meanwhile, if
    // so much memory is free. Returns one line that says what was done.
    std::string tune(const std::function<void()>& products, double seconds);
    // All choices as text (JSON), for another Gemm or a later run. timed_only leaves out the products
    // whose algorithm was the library's choice.
    std::string choices(bool timed_only = false) const;
    // Takes over choices(), which replace those made here for the same products. Returns an empty string, or
    // the reason if the text is damaged or of another GPU or library; then nothing has changed.
    std::string adopt(const std::string& choices);
    // One line for each product: the algorithm and its TFLOP/s.
    std::vector<std::string> chosen_algorithms() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};
