// gemm_choices.h: which algorithm computes which matrix product, as found by timing, and the same as
//   text, a JSON object that a run keeps in its folder
//   An algorithm is meaningful only for one version of the library on one kind of GPU. The text names both.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

// A cublasLtMatmulAlgo_t, which may be stored and used again with the same version of cuBLASLt.
using GemmAlgorithm = std::array<uint64_t, 8>;

struct GemmChoice {
    // none: the product with its epilogue is impossible, or slower than a plain product followed by our
    // kernels
    std::optional<GemmAlgorithm> algorithm;
    std::string description = {};  // of the algorithm, for people to read
    // milliseconds of this algorithm and of the library's first choice, with cold caches; 0: not timed
    double ms = 0, first_ms = 0;
    double tflops = 0;  // 10^12 operations a second
    bool operator==(const GemmChoice&) const = default;
};

// The GPU and the library for which algorithms are valid.
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
    // The other's choices replace those for the same products.
    void set(const GemmChoices& other);
    size_t size() const { return choices_.size(); }

    // timed_only leaves out the choices that were left to the library because the time was over.
    std::string text(const GemmMachine& machine, bool timed_only = false) const;
    // Reads text(). Throws UsageError if it is damaged or belongs to another GPU or library.
    static GemmChoices parse(const std::string& text, const GemmMachine& machine);
    // One line a product for people to read, the longest times first.
    std::vector<std::string> lines() const;

private:
    std::map<std::string, GemmChoice> choices_;
};
