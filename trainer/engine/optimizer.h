// optimizer.h: the optimizers, their hyperparameters, and the state that each one keeps.
#pragma once
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "trainer/engine/flat_layout.h"

// The same rules as torch.optim's classes of these names: kernels/adamw.cuh (adamw and adam), sgd.cuh,
// rmsprop.cuh, muon.cuh. Muon updates matrices only, and AdamW the rest.
enum class Optimizer { adamw, adam, sgd, rmsprop, muon };

// The size of Muon's update: the singular values of a matrix (rows, columns) change by lr times this factor.
enum class MuonScale {
    original,   // max(1, rows / columns)^0.5
    match_rms,  // 0.2 max(rows, columns)^0.5: the elements change as much as by AdamW (Liu et al. 2025)
};
double muon_factor(MuonScale scale, size_t rows, size_t columns);

// The hyperparameters of one step. An optimizer ignores those that it does not use.
struct OptimizerOptions {
    // beta2 is also rmsprop's alpha; clip = 0: gradients are not clipped
    double lr, beta1, beta2, eps, weight_decay, clip;
    double momentum = 0;    // for sgd, rmsprop and muon
    bool nesterov = false;  // for sgd
    MuonScale muon_scale = MuonScale::original;
    // the learning rates of AdamW and Muon by role, as multiples of lr; 1 for all but Muon
    std::array<double, role_count> rates = {1, 1, 1, 1};
    double rate(Role role) const { return rates[static_cast<size_t>(role)]; }
    bool operator==(const OptimizerOptions&) const = default;
};

// Names, as in torch.optim's state, of the buffers with one float a parameter: exp_avg and exp_avg_sq;
// square_avg; momentum_buffer. momentum: whether sgd or rmsprop uses momentum.
std::vector<std::string> optimizer_buffer_names(Optimizer optimizer, bool momentum);
// The name of such a buffer for a matrix that Muon updates: its momentum lies where other tensors have
// exp_avg, and it has no exp_avg_sq, "".
std::string buffer_name_of_matrix(const std::string& buffer);
