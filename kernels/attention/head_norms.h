// head_norms.h: the norms of the heads of q and k that rope.cuh applies
#pragma once

// rstd and all that follows is null without a norm. q and k, the weights (HS) of q's and of k's heads, are
// null in nanochat. y: the heads that forward has written, for nanochat's backward. x: forward writes them
// for Qwen3's.
template <class T>
struct HeadNorms {
    float eps, *rstd = nullptr;
    const T *q = nullptr, *k = nullptr, *y = nullptr;
    T* x = nullptr;
};
