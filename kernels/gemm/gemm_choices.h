// gemm_choices.h: which algorithm computes which matrix product, as found by timing, and its text: a JSON
// object that a run keeps in its folder.
//   An algorithm means something to one version of the library on one kind of GPU only, and both are named in
//   the text.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

// cublasLtMatmulAlgo_t, which may be kept and used again with the same version of cuBLASLt.
using GemmAlgorithm = std::array<uint64_t, 8>;

struct GemmChoice {
    // none: the product with its epilogue is slower than without it and our kernels behind, or impossible
    std::optional<GemmAlgorithm> algorithm;
    std::string description = {};  // of the algorithm, for people
    // of this algorithm and of the library's first choice, with cold caches; 0: not timed
    double ms = 0, first_ms = 0;
    double tflops = 0;  // 1e12 operations a second
    bool operator==(const GemmChoice&) const = default;
};

// What an algorithm is only good for.
struct GemmMachine {
    std::string gpu;
    int multiprocessors = 0;
    size_t library_version = 0;
};

class GemmChoices {
public:
    const GemmChoice* find(const std::string& product) const;
    void set(const std::string& product, const GemmChoice& choice) { choices_[product] = choice; }
    void erase(const std::string& product) { choices_.erase(product); }
    // Those of the other take the place of what was chosen for the same products.
    void set(const GemmChoices& other);
    size_t size() const { return choices_.size(); }

    // timed_only: without those that were left to the library because the time was over.
    std::string text(const GemmMachine& machine, bool timed_only = false) const;
    // Those of a text. UsageError if it is damaged, or of another machine.
    static GemmChoices parse(const std::string& text, const GemmMachine& machine);
    // For people, a product a line, the longest first.
    std::vector<std::string> lines() const;

private:
    std::map<std::string, GemmChoice> choices_;
};
