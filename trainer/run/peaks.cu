#include <algorithm>
#include <cctype>
#include <random>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "kernels/copy.cuh"
#include "kernels/gemm/gemm.h"
#include "kernels/simt/timing.h"
#include "trainer/run/peaks.h"

namespace {

// Normally distributed numbers, because a GPU's clock depends on how many bits change. They repeat after
// 65,536, because drawing all of them would take longer than the product.
template <class T>
simt::DeviceBuffer<T> random_matrix(size_t count) {
    std::minstd_rand generator(1);
    std::normal_distribution<float> normal;
    std::vector<T> period(std::min<size_t>(count, 1 << 16));
    for (T& value : period) value = T(normal(generator));
    simt::DeviceBuffer<T> matrix(count);
    simt::copy_to_device(matrix.data(), period.data(), period.size() * sizeof(T), nullptr);
    for (size_t done = period.size(); done < count; done *= 2)
        simt::copy_on_device(matrix.data() + done, matrix.data(), std::min(done, count - done) * sizeof(T),
                             nullptr);
    simt::stream_synchronize(nullptr);
    return matrix;
}

struct Product {
    size_t N, C, OC;
};

std::vector<Product> large_products(bool quick) {
    if (simt::checked) return {{128, 128, 128}};  // a number, not a measurement, in checked builds
    if (simt::is_gpu())
        return quick ? std::vector<Product>{{8192, 8192, 8192}}
                     : std::vector<Product>{{8192, 8192, 8192}, {16384, 4096, 8192}, {8192, 4096, 16384}};
    if (quick) return {{1024, 1024, 1024}};
    return {{1024, 1024, 1024}, {1056, 1056, 2112}, {2016, 1504, 2016}};
}

template <class T>
double matmul_rate(bool tf32, bool quick) {
    Gemm gemm({.tf32 = tf32});
    // On a CPU other programs may be busy; a product there takes a few milliseconds.
    const int tries = simt::checked ? 1 : simt::is_gpu() ? (quick ? 3 : 5) : 15;
    double best = 0;
    for (const auto& [N, C, OC] : large_products(quick)) {
        const simt::DeviceBuffer<char> workspace(Gemm::workspace_bytes<T>(N, C, OC));
        gemm.use_workspace(workspace.data(), workspace.bytes());
        const simt::DeviceBuffer<T> out(N * OC), inp = random_matrix<T>(N * C),
                                                 weight = random_matrix<T>(OC * C);
        const double ms = simt::fastest_milliseconds(tries, [&](stream_t stream) {
            gemm.forward<T>(out.data(), inp.data(), weight.data(), nullptr, N, C, OC, stream);
        });
        best = std::max(best, 2.0 * static_cast<double>(N * C * OC) / (ms * 1e-3));
    }
    return best;
}

struct Rates {
    std::string_view name;
    double bf16, tf32, fp32;  // TFLOP/s
};
constexpr Rates data_sheets[] = {
#include "trainer/run/nvidia_rates.inc"
};

// Words without influence on the rate: makers, sockets of modules ("SXM4"), cooling, and memory in the
// sizes that one chip is sold with. Any other size may be another chip: a GeForce RTX 3050 with 6 GB has
// fewer cores, an A100 with 64 GB has more.
bool is_skipped(const std::string& word) {
    static const std::set<std::string> words = {"NVIDIA", "TESLA", "GEFORCE", "AC",    "LC",
                                                "40GB",   "80GB",  "120GB",   "480GB", "144G"};
    return words.contains(word) || word.starts_with("HBM") || word.starts_with("SXM");
}

// "NVIDIA A100-PCIE-40GB" becomes "A100 PCIE".
std::string simplified(std::string name) {
    for (char& c : name) c = c == '-' ? ' ' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    std::istringstream in(name);
    std::string result;
    for (std::string word; in >> word;) {
        if (!is_skipped(word)) result += (result.empty() ? "" : " ") + word;
    }
    return result;
}

}  // namespace

double measure_copy_bandwidth() {
    const size_t count = size_t{64} << (simt::checked ? 10 : 20);
    const simt::DeviceBuffer<float> to(count), from(count);
    simt::fill_zero(from.data(), from.bytes(), nullptr);
    simt::fill_zero(to.data(), to.bytes(), nullptr);
    const auto fastest = [&](const auto& copied) {
        return simt::fastest_milliseconds(
            5, [&](stream_t stream) { copied(to.data(), from.data(), count, stream); });
    };
    const double ms = std::min(fastest(copy<CopyStores::plain>), fastest(copy<CopyStores::around_caches>));
    return 2.0 * static_cast<double>(to.bytes()) / (ms * 1e-3);
}

double measure_matmul_rate(DType dtype, bool quick) {
    return dtype == DType::bf16 ? matmul_rate<bfloat16>(false, quick)
                                : matmul_rate<float>(dtype == DType::tf32, quick);
}

// All remaining words must match: "RTX 4090 Laptop GPU" is another chip than "RTX 4090", and a slice of a
// GPU (MIG) is slower than the whole.
std::optional<double> nvidia_matmul_rate(const std::string& device, DType dtype) {
    const std::string name = simplified(device);
    for (const Rates& rates : data_sheets) {
        if (rates.name != name) continue;
        const double tera = dtype == DType::bf16   ? rates.bf16
                            : dtype == DType::tf32 ? rates.tf32
                                                   : rates.fp32;
        if (tera > 0) return tera * 1e12;
    }
    return std::nullopt;
}

MatmulPeak matmul_peak(const std::string& device, DType dtype, double measured) {
    if (const std::optional<double> rate = nvidia_matmul_rate(device, dtype)) return {*rate, false};
    return {measured > 0 ? measured : measure_matmul_rate(dtype, true), true};
}

std::string rate_text(double flops_per_second, int processes) {
    const bool tera = flops_per_second >= 1e12;
    return fmt::format("{}{:.1f} {}FLOP/s", processes == 1 ? "" : fmt::format("{} x ", processes),
                       flops_per_second * (tera ? 1e-12 : 1e-9), tera ? "T" : "G");
}

std::string to_string(const MatmulPeak& peak, int processes) {
    return fmt::format("{}, {}", rate_text(peak.flops_per_second, processes),
                       peak.measured ? "measured by a large matrix product" : "NVIDIA's figure for this GPU");
}
