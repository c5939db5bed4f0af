// attention_onednn.h: attention by matrix products of oneDNN, one head for each thread. Shapes and
//   meanings are those of attention.h.
#pragma once
#include <memory>
#include <vector>

#include "kernels/attention/attention.h"

class OneDnnAttention {
public:
    OneDnnAttention();
    ~OneDnnAttention();
    OneDnnAttention(const OneDnnAttention&) = delete;

    // True if oneDNN multiplies T on this processor.
    template <class T>
    static bool supports();

    // O(T) for each thread.
    template <class T>
    size_t workspace_bytes(AttentionShape shape);
    template <class T>
    void forward(T* out, float* lse, const T* qkv, AttentionShape shape, void* workspace);
    template <class T>
    void backward(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse, AttentionShape shape,
                  void* workspace);

private:
    class Thread;
    template <class T>
    size_t part_bytes(AttentionShape shape);
    template <class T, class Body>
    void for_each_head(AttentionShape shape, size_t step, void* workspace, Body body);  // every step-th head

    std::vector<std::unique_ptr<Thread>> threads_;
};
