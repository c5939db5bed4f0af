// optimizer.h: the rules by which gradients change parameters, their numbers, and the state that each keeps.
#pragma once
#include <string>
#include <vector>

// As torch.optim's classes of these names: kernels/adamw.cuh (adamw and adam), sgd.cuh, rmsprop.cuh.
enum class Optimizer { adamw, adam, sgd, rmsprop };

// The numbers of one step. What the optimizer has no use for is not read.
struct OptimizerOptions {
    // beta2: rmsprop's alpha; clip 0: gradients are not clipped
    double lr, beta1, beta2, eps, weight_decay, clip;
    double momentum = 0;    // sgd, rmsprop
    bool nesterov = false;  // sgd
    bool operator==(const OptimizerOptions&) const = default;
};

// Names, as in torch.optim's state, of the buffers of one float a parameter: exp_avg and exp_avg_sq;
// square_avg; momentum_buffer.
// momentum: of sgd and rmsprop, whether it is used at all.
std::vector<std::string> optimizer_buffer_names(Optimizer optimizer, bool momentum);
