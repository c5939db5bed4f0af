// matrix_product: the steps of docs/learn/9-matrix-product.md (product_steps.h), measured or computed
//   matrix_product measure M N K ROUNDS [NAME...]
//   Prints one JSON object: "threads", "lanes" of a vector, "pairs" (whether the machine multiplies pairs of
//   bfloat16), "large_product" (GFLOP/s of the peak that --profile prints), and "ms": {name: [milliseconds
//   of each round]}. In every round all steps, or those named, take turns, but elements in the first three
//   rounds only. Each computes 2 M N K operations:
//     elements rows blocks tiles packed_1   on one thread
//     packed                                on all threads
//     pairs                                 the same from bfloat16, where the machine multiplies pairs
//     packed_dx packed_dw                   the two products of backward, by the same function
//     ours ours_bf16 ours_dx ours_dw        kernels/gemm/packed_product.h
//     onednn_1 onednn onednn_bf16           oneDNN, B row by row. With _t: B in memory is its transpose.
//                                           bfloat16 where oneDNN multiplies it fast
//     peak_1 peak                           multiply-adds in registers
//   matrix_product multiply M N K < OPERANDS > RESULTS
//   OPERANDS: A (M, K), B (K, N), D (M, N) in fp32. RESULTS, in fp32: C = A B by elements, rows, blocks,
//   tiles, packed_1, packed, ours, ours_bf16 and pairs (in plain arithmetic where the machine has none),
//   then D B^T and A^T D by packed, and both by packed_product.h.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "dev/learn/number.h"
#include "dev/learn/product_steps.h"
#include "kernels/gemm/onednn_product.h"
#include "kernels/gemm/packed_product.h"
#include "kernels/simt/device.h"
#include "system/run_main.h"
#include "trainer/run/peaks.h"

namespace {

using simt::DeviceBuffer;
using namespace product_steps;

DeviceBuffer<bfloat16> rounded(const DeviceBuffer<float>& from) {
    DeviceBuffer<bfloat16> to(from.size());
    for (size_t i = 0; i < from.size(); i++) to.data()[i] = bfloat16(from.data()[i]);
    return to;
}

// All operands and results, and every way to multiply them.
class Products {
public:
    const size_t M, N, K;
    DeviceBuffer<float> a{M * K}, b{K * N}, d{M * N}, c{M * N}, da{M * K}, db{K * N};

    Products(size_t M, size_t N, size_t K) : M(M), N(N), K(K) {}

    void round() { a_bf16_ = rounded(a), b_bf16_ = rounded(b); }

    Product product() const { return {c.data(), a.data(), b.data(), M, N, K}; }
    View<float> view_a() const { return {a.data(), K, 1}; }
    View<float> view_b() const { return {b.data(), N, 1}; }
    View<float> view_d() const { return {d.data(), N, 1}; }

    void packed_fp32() { packed(c.data(), view_a(), view_b(), M, N, K, scratch_.data()); }
    void packed_pairs() {
        packed(c.data(), View<bfloat16>{a_bf16_.data(), K, 1}, View<bfloat16>{b_bf16_.data(), N, 1}, M, N, K,
               pair_scratch_.data());
    }
    // Backward of C = A B with the gradient D of C.
    void packed_dx() { packed(da.data(), view_d(), view_b().transposed(), M, K, N, scratch_.data()); }
    void packed_dw() { packed(db.data(), view_a().transposed(), view_d(), K, N, M, scratch_.data()); }

    void ours() { ours(c.data(), {a.data(), K, false}, {b.data(), N, false}, M, N, K); }
    void ours_dx() { ours(da.data(), {d.data(), N, false}, {b.data(), N, true}, M, K, N); }
    void ours_dw() { ours(db.data(), {a.data(), K, true}, {d.data(), N, false}, K, N, M); }
    void ours_bf16() {
        packed_product(c.data(), {a_bf16_.data(), K, false}, {b_bf16_.data(), N, false},
                       static_cast<const bfloat16*>(nullptr), M, N, K, ours_scratch_.data());
    }

    const bfloat16* a_bf16() const { return a_bf16_.data(); }
    const bfloat16* b_bf16() const { return b_bf16_.data(); }

private:
    const size_t threads_ = static_cast<size_t>(omp_get_max_threads());
    DeviceBuffer<bfloat16> a_bf16_, b_bf16_;
    DeviceBuffer<Scratch<float>> scratch_{threads_};
    DeviceBuffer<Scratch<uint32_t>> pair_scratch_{threads_};
    DeviceBuffer<char> ours_scratch_{packed_product_scratch_bytes()};

    void ours(float* result, Operand<float> x, Operand<float> y, size_t rows, size_t columns, size_t terms) {
        packed_product(result, x, y, static_cast<const float*>(nullptr), rows, columns, terms,
                       ours_scratch_.data());
    }
};

// oneDNN's product of A (M, K) and B, which lies in memory as B or as its transpose.
template <class T>
class OneDnn {
public:
    OneDnn(size_t M, size_t N, size_t K, bool transposed_b)
        : product_(description(M, N, K, transposed_b)), scratch_(product_.scratch_bytes()) {}
    void run(float* c, const T* a, const T* b) { product_.run(stream_, c, a, b, nullptr, scratch_.data()); }

private:
    dnnl::stream stream_{onednn_cpu()};
    OneDnnProduct product_;
    DeviceBuffer<char> scratch_;

    static dnnl::matmul::primitive_desc description(size_t M, size_t N, size_t K, bool transposed_b) {
        constexpr auto type = onednn_type<T>, fp32 = onednn_type<float>;
        const auto found =
            describe({.type = type, .result = fp32, .M = M, .N = N, .K = K, .transposed_b = transposed_b});
        CHECK(found, "oneDNN has no product of {} x {} x {} for this machine", M, N, K);
        return found;
    }
};

struct Step {
    std::string name;
    int threads;
    std::function<void()> run;
};

std::vector<Step> own_steps(Products& p, int threads) {
    return {{"elements", 1, [&p] { elements(p.product()); }},
            {"rows", 1, [&p] { rows(p.product()); }},
            {"blocks", 1, [&p] { blocks(p.product()); }},
            {"tiles", 1, [&p] { tiles(p.product()); }},
            {"packed_1", 1, [&p] { p.packed_fp32(); }},
            {"packed", threads, [&p] { p.packed_fp32(); }},
            {"ours", threads, [&p] { p.ours(); }},
            {"ours_bf16", threads, [&p] { p.ours_bf16(); }},
            {"pairs", threads, [&p] { p.packed_pairs(); }}};
}
std::vector<Step> backward_steps(Products& p, int threads) {
    return {{"packed_dx", threads, [&p] { p.packed_dx(); }},
            {"packed_dw", threads, [&p] { p.packed_dw(); }},
            {"ours_dx", threads, [&p] { p.ours_dx(); }},
            {"ours_dw", threads, [&p] { p.ours_dw(); }}};
}

template <class T>
void add_onednn(std::vector<Step>& steps, Products& p, const std::string& name, int threads, const T* a,
                const T* b) {
    omp_set_num_threads(threads);  // a primitive is made for a number of threads
    for (const bool transposed : {false, true}) {
        const auto product = std::make_shared<OneDnn<T>>(p.M, p.N, p.K, transposed);
        steps.push_back(
            {name + (transposed ? "_t" : ""), threads, [=, c = p.c.data()] { product->run(c, a, b); }});
    }
}

// As many multiply-adds in registers as a product has.
void peak(const Products& p) {
    const size_t each = size_t{tile_rows} * tile_columns, total = p.M * p.N * p.K;
    volatile float factor = 0.5f, addend = 1, sink = 0;
#pragma omp parallel
    sink = registers_only(total / each / static_cast<size_t>(omp_get_num_threads()), factor, addend);
    static_cast<void>(sink);
}

// Milliseconds of processor time of all of OpenMP's threads so far.
double busy_milliseconds() {
    double sum = 0;
#pragma omp parallel reduction(+ : sum)
    {
        timespec time{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        sum += 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
    }
    return sum;
}

// Milliseconds for which the step kept each of its threads busy, on average. Other programs' time does not
// count. Time in which threads wait for each other does, as long as OpenMP lets them wait awake.
double milliseconds(const Step& step) {
    omp_set_num_threads(step.threads);
    const double start = busy_milliseconds();
    step.run();
    return (busy_milliseconds() - start) / step.threads;
}

std::string list(const std::vector<double>& values) {
    std::string text;
    for (const double v : values) text += fmt::format("{}{}", text.empty() ? "" : ", ", v);
    return text;
}

void measure(Products& p, size_t rounds, const std::set<std::string>& names) {
    const int threads = omp_get_max_threads();
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    for (DeviceBuffer<float>* const operand : {&p.a, &p.b, &p.d})
        std::generate_n(operand->data(), operand->size(), [&] { return normal(generator); });
    p.round();
    std::vector<Step> steps = own_steps(p, threads);
    if (!simt::has_bf16_pairs) steps.pop_back();
    for (Step& step : backward_steps(p, threads)) steps.push_back(std::move(step));
    add_onednn(steps, p, "onednn_1", 1, p.a.data(), p.b.data());
    add_onednn(steps, p, "onednn", threads, p.a.data(), p.b.data());
    if (onednn_multiplies_bf16_fast()) add_onednn(steps, p, "onednn_bf16", threads, p.a_bf16(), p.b_bf16());
    steps.push_back({"peak_1", 1, [&p] { peak(p); }});
    steps.push_back({"peak", threads, [&p] { peak(p); }});
    if (!names.empty()) std::erase_if(steps, [&](const Step& step) { return !names.contains(step.name); });

    std::vector<std::vector<double>> times(steps.size());
    for (size_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < steps.size(); i++) {
            const bool slow = steps[i].name == "elements";
            if (slow && round >= 3) continue;
            if (!slow) milliseconds(steps[i]);  // fills the caches and wakes threads
            times[i].push_back(milliseconds(steps[i]));
        }
    }
    std::string all;
    for (size_t i = 0; i < steps.size(); i++)
        all += fmt::format("{}\"{}\": [{}]", i == 0 ? "" : ", ", steps[i].name, list(times[i]));
    omp_set_num_threads(threads);
    const double large_product = 1e-9 * measure_matmul_rate(DType::fp32, true);
    write_output(
        fmt::format(
            "{{\"threads\": {}, \"lanes\": {}, \"pairs\": {}, \"large_product\": {}, \"ms\": {{{}}}}}\n",
            threads, lanes, simt::has_bf16_pairs, large_product, all),
        "the result");
}

void multiply(Products& p) {
    for (DeviceBuffer<float>* const operand : {&p.a, &p.b, &p.d})
        CHECK(std::fread(operand->data(), sizeof(float), operand->size(), stdin) == operand->size(),
              "standard input is shorter than the operands");
    p.round();
    const auto write = [&](const Step& step, DeviceBuffer<float>& result) {
        std::fill_n(result.data(), result.size(), NAN);
        omp_set_num_threads(step.threads);
        step.run();
        write_output({reinterpret_cast<const char*>(result.data()), result.bytes()}, "the result");
    };
    const int threads = omp_get_max_threads();
    for (const Step& step : own_steps(p, threads)) write(step, p.c);
    for (const Step& step : backward_steps(p, threads)) write(step, step.name.ends_with("dx") ? p.da : p.db);
}

}  // namespace

int main(int argc, char** argv) {
    return run_main("matrix_product", [&] {
        const std::string mode = argc > 4 ? argv[1] : "";
        CHECK((mode == "measure" && argc >= 6) || (mode == "multiply" && argc == 5),
              "expected measure M N K ROUNDS [NAME...], or multiply M N K");
        simt::select_device();
        Products products(number<size_t>(argv[2]), number<size_t>(argv[3]), number<size_t>(argv[4]));
        if (mode == "measure") measure(products, number<size_t>(argv[5]), {argv + 6, argv + argc});
        else multiply(products);
    });
}
