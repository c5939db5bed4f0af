// attention_gpu.cpp with imitations of cuDNN and of our own kernel, defined below: which of them computes,
// its workspace, and the messages.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/attention_kernel.h"
#include "system/error.h"
#include "temporary_folder.h"

namespace {

// Behaviour of the imitations, and the recorded calls.
struct Imitation {
    std::string unavailable;
    bool deterministic = false;
    int longest = 1024;  // longest sequence that cuDNN supports
    bool compiles = true;
    int compilations = 0;
    size_t most_workspace = 0;
    std::vector<std::string> calls;
};
Imitation* imitation = nullptr;

}  // namespace

struct CudnnAttention::State {
    std::map<std::pair<int, AttentionPass>, CudnnOffer> offers;
    std::set<std::pair<int, AttentionPass>> compiled;
};
CudnnAttention::CudnnAttention(bool deterministic) : state_(std::make_unique<State>()) {
    imitation->deterministic = deterministic;
}
CudnnAttention::~CudnnAttention() = default;
const std::string& CudnnAttention::unavailable() { return imitation->unavailable; }
const CudnnOffer& CudnnAttention::plan(AttentionShape shape, AttentionPass pass, size_t most_workspace) {
    imitation->most_workspace = most_workspace;
    CudnnOffer& offer = state_->offers[{shape.T, pass}];
    offer.workspace_bytes = (pass == AttentionPass::forward ? 10u : 1000u) * static_cast<size_t>(shape.T);
    if (!imitation->unavailable.empty()) offer.refusal = imitation->unavailable;
    else if (shape.T > imitation->longest) offer.refusal = "too long";
    return offer;
}
const CudnnOffer* CudnnAttention::compiled(AttentionShape shape, AttentionPass pass) {
    const auto place = state_->offers.find({shape.T, pass});
    if (place == state_->offers.end()) return nullptr;
    CudnnOffer& offer = place->second;
    if (offer.refusal.empty() && state_->compiled.insert({shape.T, pass}).second) {
        imitation->compilations++;
        if (!imitation->compiles) offer.refusal = "does not compile";
    }
    return &offer;
}
void CudnnAttention::forward(bfloat16*, float*, const bfloat16*, AttentionShape, void*, stream_t) {
    imitation->calls.push_back("cudnn forward");
}
void CudnnAttention::backward(bfloat16*, const bfloat16*, const bfloat16*, const bfloat16*, const float*,
                              AttentionShape, void*, stream_t) {
    imitation->calls.push_back("cudnn backward");
}

constexpr size_t kernel_bytes_a_token = 500;
size_t attention_kernel_workspace_bytes(AttentionShape shape) {
    return kernel_bytes_a_token * static_cast<size_t>(shape.T);
}
template <class T>
void attention_kernel_forward(T*, float*, const T*, AttentionShape, stream_t) {
    imitation->calls.push_back("kernel forward");
}
template <class T>
void attention_kernel_backward(T*, const T*, const T*, const T*, const float*, AttentionShape, void*,
                               stream_t) {
    imitation->calls.push_back("kernel backward");
}
template void attention_kernel_forward(float*, float*, const float*, AttentionShape, stream_t);
template void attention_kernel_forward(bfloat16*, float*, const bfloat16*, AttentionShape, stream_t);
template void attention_kernel_backward(float*, const float*, const float*, const float*, const float*,
                                        AttentionShape, void*, stream_t);
template void attention_kernel_backward(bfloat16*, const bfloat16*, const bfloat16*, const bfloat16*,
                                        const float*, AttentionShape, void*, stream_t);

namespace {

using Calls = std::vector<std::string>;

class AttentionChoice : public testing::Test {
protected:
    AttentionChoice() { imitation = &imitation_; }
    static AttentionShape length(int T) { return {4, T, 12, 64}; }

    template <class T>
    Calls train(const Attention& attention, AttentionShape shape) {
        imitation_.calls.clear();
        attention.forward<T>(nullptr, nullptr, nullptr, shape, nullptr, nullptr);
        attention.backward<T>(nullptr, nullptr, nullptr, nullptr, nullptr, shape, nullptr, nullptr);
        return imitation_.calls;
    }

    Imitation imitation_;
    const Calls by_cudnn{"cudnn forward", "cudnn backward"}, by_kernel{"kernel forward", "kernel backward"};
};

TEST_F(AttentionChoice, CudnnComputesInBf16AndOurKernelElsewhere) {
    const Attention attention(AttentionBackend::automatic, true);
    EXPECT_TRUE(imitation_.deterministic);
    EXPECT_EQ(attention.workspace_bytes<bfloat16>(length(64)), 64 * 1000u);
    EXPECT_EQ(attention.workspace_bytes<bfloat16>(length(64), false), 64 * 10u);
    EXPECT_EQ(attention.workspace_bytes<float>(length(64)), 64 * kernel_bytes_a_token);
    EXPECT_EQ(attention.workspace_bytes<float>(length(64), false), 0u);
    EXPECT_EQ(train<bfloat16>(attention, length(64)), by_cudnn);
    EXPECT_EQ(train<float>(attention, length(64)), by_kernel);
    const Attention kernel(AttentionBackend::kernel);
    EXPECT_FALSE(imitation_.deterministic);
    EXPECT_EQ(kernel.workspace_bytes<bfloat16>(length(64)), 64 * kernel_bytes_a_token);
    EXPECT_EQ(train<bfloat16>(kernel, length(64)), by_kernel);
}

TEST_F(AttentionChoice, WhatCudnnRefusesOurKernelComputesAndTheReasonIsSaidOnce) {
    const Attention attention;
    testing::internal::CaptureStderr();
    for (const int T : {1025, 2000}) {
        EXPECT_EQ(attention.workspace_bytes<bfloat16>(length(T)),
                  static_cast<size_t>(T) * kernel_bytes_a_token);
        for (int i = 0; i < 3; i++) EXPECT_EQ(train<bfloat16>(attention, length(T)), by_kernel);
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "attention: our own kernel, not cuDNN's: too long\n");
}

// --batch-size auto and --plan ask about many shapes, and every plan would take a second to compile.
TEST_F(AttentionChoice, OnlyTheShapesThatRunAreCompiled) {
    const Attention attention;
    for (const int T : {64, 128, 256, 512}) attention.workspace_bytes<bfloat16>(length(T));
    EXPECT_EQ(imitation_.compilations, 0);
    for (int step = 0; step < 3; step++) EXPECT_EQ(train<bfloat16>(attention, length(256)), by_cudnn);
    EXPECT_EQ(imitation_.compilations, 2);  // forward and backward
}

TEST_F(AttentionChoice, APlanThatDoesNotCompileLeavesThePassToOurKernel) {
    imitation_.compiles = false;
    const Attention attention, only_cudnn(AttentionBackend::cudnn);
    EXPECT_GE(attention.workspace_bytes<bfloat16>(length(64)), 64 * kernel_bytes_a_token);
    testing::internal::CaptureStderr();
    for (int step = 0; step < 3; step++) EXPECT_EQ(train<bfloat16>(attention, length(64)), by_kernel);
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "attention: our own kernel, not cuDNN's: does not compile\n");
    only_cudnn.workspace_bytes<bfloat16>(length(64));
    EXPECT_EQ(message_of<UsageError>([&] { train<bfloat16>(only_cudnn, length(64)); }),
              "--attention cudnn: does not compile; expected --attention auto or kernel");
}

TEST_F(AttentionChoice, ShapesNotAskedAboutAreOurKernelsAndNothingIsSaid) {
    const Attention attention;
    EXPECT_EQ(attention.workspace_bytes<bfloat16>(length(100)), 100 * 1000u);
    testing::internal::CaptureStderr();
    EXPECT_EQ(train<bfloat16>(attention, length(99)), by_kernel);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    EXPECT_EQ(train<bfloat16>(attention, length(100)), by_cudnn);
}

TEST_F(AttentionChoice, TheWorkspaceGrowsWithTheLengthNotWithItsSquare) {
    const Attention attention;
    attention.workspace_bytes<bfloat16>({1, 1024, 12, 64});
    EXPECT_EQ(imitation_.most_workspace, size_t{256} << 20);
    attention.workspace_bytes<bfloat16>({64, 1024, 12, 64});  // twice a gradient of q in fp32
    EXPECT_EQ(imitation_.most_workspace, size_t{2} * 64 * 1024 * 12 * 64 * 4);
}

TEST_F(AttentionChoice, CudnnAskedForByNameComputesOrIsAClearError) {
    const Attention attention(AttentionBackend::cudnn);
    EXPECT_EQ(attention.workspace_bytes<bfloat16>(length(64)), 64 * 1000u);
    EXPECT_EQ(message_of<UsageError>([&] { attention.workspace_bytes<bfloat16>(length(1025)); }),
              "--attention cudnn: too long; expected --attention auto or kernel");
    EXPECT_EQ(
        message_of<UsageError>([&] { attention.workspace_bytes<float>(length(64)); }),
        "--attention cudnn computes in bf16 only; expected --dtype bf16, or --attention auto or kernel");
    imitation_.unavailable = "there is none";
    EXPECT_EQ(message_of<UsageError>([] { Attention(AttentionBackend::cudnn); }),
              "--attention cudnn: there is none; expected --attention auto or kernel");
    EXPECT_EQ(message_of<UsageError>([] { Attention(AttentionBackend::onednn); }),
              "--attention onednn is for the CPU; expected auto, kernel or cudnn");
}

TEST_F(AttentionChoice, WithoutCudnnOurKernelComputesAndSaysWhy) {
    EXPECT_EQ(Attention::available<bfloat16>(),
              (std::vector{AttentionBackend::kernel, AttentionBackend::cudnn}));
    EXPECT_EQ(Attention::available<float>(), std::vector{AttentionBackend::kernel});
    imitation_.unavailable = "there is none";
    EXPECT_EQ(Attention::available<bfloat16>(), std::vector{AttentionBackend::kernel});
    const Attention attention;
    EXPECT_EQ(attention.workspace_bytes<bfloat16>(length(64)), 64 * kernel_bytes_a_token);
    testing::internal::CaptureStderr();
    EXPECT_EQ(train<bfloat16>(attention, length(64)), by_kernel);
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "attention: our own kernel, not cuDNN's: there is none\n");
}

}  // namespace
