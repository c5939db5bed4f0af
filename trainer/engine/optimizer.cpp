#include "trainer/engine/optimizer.h"

std::vector<std::string> optimizer_buffer_names(Optimizer optimizer, bool momentum) {
    std::vector<std::string> names;
    if (optimizer == Optimizer::adamw || optimizer == Optimizer::adam) return {"exp_avg", "exp_avg_sq"};
    if (optimizer == Optimizer::rmsprop) names.emplace_back("square_avg");
    if (momentum) names.emplace_back("momentum_buffer");
    return names;
}
