#include "trainer/engine/optimizer.h"

#include <algorithm>
#include <cmath>

std::vector<std::string> optimizer_buffer_names(Optimizer optimizer, bool momentum) {
    std::vector<std::string> names;
    if (optimizer == Optimizer::adamw || optimizer == Optimizer::adam || optimizer == Optimizer::muon)
        return {"exp_avg", "exp_avg_sq"};
    if (optimizer == Optimizer::rmsprop) names.emplace_back("square_avg");
    if (momentum) names.emplace_back("momentum_buffer");
    return names;
}

std::string buffer_name_of_matrix(const std::string& buffer) {
    return buffer == "exp_avg" ? "momentum_buffer" : "";
}

double muon_factor(MuonScale scale, size_t rows, size_t columns) {
    const double r = static_cast<double>(rows), c = static_cast<double>(columns);
    return scale == MuonScale::original ? std::sqrt(std::max(1.0, r / c)) : 0.2 * std::sqrt(std::max(r, c));
}
