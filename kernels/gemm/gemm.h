// gemm.h: the matrix products of training, exactly the forms the model uses, over a vendor library.
//   gemm_cublaslt.cpp (GPU) and gemm_onednn.cpp (CPU) implement it; the build links one of them.
//   All matrices are row-major and contiguous. T is float or bfloat16; weights are (OC, C) = (out, in).
//   Products accumulate in fp32. tf32 lets the GPU round fp32 inputs to 10-bit mantissas; the CPU computes
//   fp32.
//   2*N*C*OC operations each; bound by arithmetic, except where N is small.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/simt/bfloat16.h"
#include "kernels/simt/device.h"

class Gemm {
public:
    // How the CPU multiplies bfloat16: by its own instructions, or as floats.
    enum class Bf16 { automatic, native, widened };  // automatic: whichever this processor does faster
    struct Options {
        bool tf32 = false;
        Bf16 bf16 = Bf16::automatic;  // for tests; the GPU ignores it
    };
    explicit Gemm(Options options);
    ~Gemm();
    Gemm(const Gemm&) = delete;

    // Bytes of scratch that any product of this shape wants. On the CPU it depends on the number of threads:
    // ask after simt::select_device.
    template <class T>
    static size_t workspace_bytes(size_t N, size_t C, size_t OC);
    // Scratch for bias gradients and for the library, at least the largest workspace_bytes of the shapes to
    // come. The caller owns it; it outlives the Gemm.
    void use_workspace(void* workspace, size_t bytes);

    // out (N, OC) = inp (N, C) weight^T + bias (OC); bias may be nullptr
    template <class T>
    void forward(T* out, const T* inp, const T* weight, const T* bias, size_t N, size_t C, size_t OC,
                 stream_t stream);

    // pre_gelu (N, OC) = inp weight^T + bias;  out (N, OC) = gelu(pre_gelu). In fp32 (and TF32) the GELU,
    // here and in backward, is always the one of gelu.cuh, since that of a library may be less exact.
    template <class T>
    void forward_gelu(T* out, T* pre_gelu, const T* inp, const T* weight, const T* bias, size_t N, size_t C,
                      size_t OC, stream_t stream);

    // dinp (N, C) = dout (N, OC) weight
    template <class T>
    void backward_input(T* dinp, const T* dout, const T* weight, size_t N, size_t C, size_t OC,
                        stream_t stream);

    // dpre_gelu (N, C) = (dout (N, OC) weight) * gelu'(pre_gelu)
    template <class T>
    void backward_input_gelu(T* dpre_gelu, const T* dout, const T* weight, const T* pre_gelu, size_t N,
                             size_t C, size_t OC, stream_t stream);

    // dweight (OC, C) fp32 = (or +=, if accumulate) dout^T inp;  dbias (OC) fp32 += column sums of dout;
    // dbias may be nullptr
    template <class T>
    void backward_weight(float* dweight, float* dbias, const T* dout, const T* inp, size_t N, size_t C,
                         size_t OC, bool accumulate, stream_t stream);

    // Which algorithms of the library the GPU multiplies with. The CPU's library chooses by itself: there
    // these do nothing and give nothing.
    //
    // Calls products(), which calls the functions above as training will, with its own tensors and shapes.
    // Every product that comes for the first time and was not chosen for yet is timed there and then, with
    // each algorithm that the library offers and that computes the same, and with its epilogue apart; all
    // that a call writes is written and added to many times over, and at last once as it should. No timing
    // begins when
    // the seconds are over: what comes then is done with the library's first choice, now and ever after.
    // Returns a line that says what was done. Host and GPU work in turns, and twice the GPU's second-level
    // cache is allocated for the while, where so much is free.
    std::string tune(const std::function<void()>& products, double seconds);
    // Everything that was chosen, as text (JSON) for another Gemm or another time; timed_only: without what
    // was left to the library.
    std::string choices(bool timed_only = false) const;
    // Goes by what another chose, before what was chosen here for the same products. The reason if it cannot,
    // because the text is of another GPU or library or is damaged; then nothing has changed.
    std::string adopt(const std::string& choices);
    // What was chosen, with its TFLOP/s, a product a line.
    std::vector<std::string> chosen_algorithms() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};
