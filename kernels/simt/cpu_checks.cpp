// cpu_checks.cpp: the setting of the threads' order, and the errors for what a kernel must not do
#include <fmt/core.h>

#include <cstdlib>
#include <string>

#include "kernels/simt/cpu.h"
#include "kernels/simt/ready_threads.h"
#include "system/error.h"

namespace simt::cpu {
namespace {

// SIMT_ORDER=descending or shuffled:SEED in the environment lets a whole program run in another order.
OrderSetting order_from_environment() {
    const char* text = std::getenv("SIMT_ORDER");
    const std::string value = text ? text : "ascending";
    if (value == "ascending") return {};
    if (value == "descending") return {Order::descending, 0};
    const std::string digits = value.starts_with("shuffled:") ? value.substr(9) : "";
    if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) {
        throw UsageError(fmt::format(
            "SIMT_ORDER is '{}'; expected ascending, descending or shuffled:SEED with a seed below 10^18",
            value));
    }
    return {Order::shuffled, std::stoull(digits)};
}

}  // namespace

OrderSetting& order_setting() {
    static OrderSetting setting = order_from_environment();
    return setting;
}

void set_order(Order order, uint64_t seed) { order_setting() = {order, seed}; }

void refuse_partial_mask(unsigned mask, Site site) {
    throw Error(fmt::format("simt: {} with mask {:#x} at {}:{}; expected 0xffffffff, all lanes of the warp",
                            site.what, mask, site.here.file, site.here.line));
}
void refuse_block(unsigned expected_threads, Site site) {
    throw Error(
        fmt::format("simt: {} over a row of {} threads at {}:{} in a block of {}; expected one row a block",
                    site.what, expected_threads, site.here.file, site.here.line, blockDim.x));
}
void refuse_misaligned(const void* address, size_t alignment) {
    throw Error(
        fmt::format("simt: block ({}, {}, {}), thread {}: address {} is not a multiple of {}, which a GPU "
                    "demands of this load or store",
                    blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, address, alignment));
}

}  // namespace simt::cpu
