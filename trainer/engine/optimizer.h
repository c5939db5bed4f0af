// optimizer.h: the optimizers, their hyperparameters, and the state that each one keeps.
#pragma once
#include <string>
#include <vector>

// The same rules as torch.optim's classes of these names: kernels/adamw.cuh (adamw and adam), sgd.cuh,
// rmsprop.cuh.
enum class Optimizer { adamw, adam, sgd, rmsprop };

// The hyperparameters of one step. An optimizer ignores those that it does not use.
struct OptimizerOptions {
    // beta2 is also rmsprop's alpha; clip = 0: gradients are not clipped
    double lr, beta1, beta2, eps, weight_decay, clip;
    double momentum = 0;    // for sgd and rmsprop
    bool nesterov = false;  // for sgd
    bool operator==(const OptimizerOptions&) const = default;
};

// Names, as in torch.optim's state, of the buffers with one float a parameter: exp_avg and exp_avg_sq;
// square_avg; momentum_buffer. momentum: whether sgd or rmsprop uses momentum.
std::vector<std::string> optimizer_buffer_names(Optimizer optimizer, bool momentum);
