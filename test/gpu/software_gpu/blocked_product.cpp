#include "blocked_product.h"

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cstdint>
#include <cstring>
#include <vector>

namespace software_gpu {

namespace {

constexpr size_t lanes = 16;
using Lanes = float __attribute__((vector_size(lanes * sizeof(float)), aligned(sizeof(float)), may_alias));

// A tile of the result that stays in registers: 2 * 8 vectors.
constexpr size_t tile_rows = 2 * lanes, tile_columns = 8;
// A's block (256 KiB) stays in the second-level cache, a panel of B's (8 KiB) in the first.
constexpr size_t block_rows = 8 * tile_rows, block_terms = 256;

size_t rounded_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

float tf32(float value, bool truncate) {
    constexpr uint32_t ignored = 0x1fff, half = 0x1000, infinity = 0x7f800000;
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + (truncate ? 0 : half)) & ~ignored;
    return std::bit_cast<float>((bits & 0x7fffffffu) > infinity ? bits : rounded);
}

// Rounds towards zero while the object exists.
class Truncation {
public:
    explicit Truncation(bool wanted) : before_(std::fegetround()) {
        if (wanted) std::fesetround(FE_TOWARDZERO);
    }
    ~Truncation() { std::fesetround(before_); }
    Truncation(const Truncation&) = delete;

private:
    int before_;
};

// tile (tile_rows, tile_columns) += panel of A (tile_rows, terms) * panel of B (terms, tile_columns).
[[gnu::noinline]] void multiply(float* tile, size_t leading, const float* a, const float* b, size_t terms) {
    Lanes upper[tile_columns], lower[tile_columns];
    for (size_t j = 0; j < tile_columns; j++) {
        upper[j] = *reinterpret_cast<const Lanes*>(tile + j * leading);
        lower[j] = *reinterpret_cast<const Lanes*>(tile + j * leading + lanes);
    }
    for (size_t l = 0; l < terms; l++, a += tile_rows, b += tile_columns) {
        const Lanes a_upper = *reinterpret_cast<const Lanes*>(a),
                    a_lower = *reinterpret_cast<const Lanes*>(a + lanes);
        for (size_t j = 0; j < tile_columns; j++) {
            upper[j] += a_upper * b[j];
            lower[j] += a_lower * b[j];
        }
    }
    for (size_t j = 0; j < tile_columns; j++) {
        *reinterpret_cast<Lanes*>(tile + j * leading) = upper[j];
        *reinterpret_cast<Lanes*>(tile + j * leading + lanes) = lower[j];
    }
}

// At the edges, where less than a tile of the result remains.
void multiply_part(float* sum, size_t leading, size_t rows, size_t columns, const float* a, const float* b,
                   size_t terms) {
    float tile[tile_rows * tile_columns] = {};
    for (size_t j = 0; j < columns; j++) std::copy_n(sum + j * leading, rows, tile + j * tile_rows);
    multiply(tile, tile_rows, a, b, terms);
    for (size_t j = 0; j < columns; j++) std::copy_n(tile + j * tile_rows, rows, sum + j * leading);
}

// Panels of `width` neighbouring rows of op(A) or columns of op(B), with zeros for missing ones; the terms
// of a neighbour follow each other. along: the neighbours are adjacent in memory, otherwise the terms are.
void pack(float* panels, const ProductInput& input, bool along, size_t width, ProductRange neighbours,
          ProductRange terms) {
    const size_t count = terms.end - terms.begin;
    float line[block_terms];
    for (size_t first = neighbours.begin; first < neighbours.end; first += width, panels += width * count) {
        const size_t used = std::min(width, neighbours.end - first);
        if (used < width) std::fill_n(panels, width * count, 0.0f);
        if (along) {
            for (size_t l = 0; l < count; l++) input.load(panels + l * width, first, terms.begin + l, used);
            continue;
        }
        for (size_t i = 0; i < used; i++) {
            input.load(line, terms.begin, first + i, count);
            for (size_t l = 0; l < count; l++) panels[l * width + i] = line[l];
        }
    }
}

void multiply_block(float* sum, size_t leading, size_t rows, size_t columns, const float* a, const float* b,
                    size_t terms) {
    for (size_t j = 0; j < columns; j += tile_columns) {
        for (size_t i = 0; i < rows; i += tile_rows) {
            float* const tile = sum + j * leading + i;
            const float *const a_panel = a + i * terms, *const b_panel = b + j * terms;
            if (rows - i >= tile_rows && columns - j >= tile_columns)
                multiply(tile, leading, a_panel, b_panel, terms);
            else
                multiply_part(tile, leading, std::min(tile_rows, rows - i),
                              std::min(tile_columns, columns - j), a_panel, b_panel, terms);
        }
    }
}

}  // namespace

void ProductInput::load(float* to, size_t first, size_t column, size_t count) const {
    const size_t offset = column * leading + first;
    if (bf16) {
        const auto* const from = static_cast<const uint16_t*>(values) + offset;
        for (size_t i = 0; i < count; i++) to[i] = std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16);
        return;
    }
    const auto* const from = static_cast<const float*>(values) + offset;
    if (tf32 == Tf32::none) {
        std::memcpy(to, from, count * sizeof(float));
    } else {
        const bool truncate = tf32 == Tf32::truncate;
        for (size_t i = 0; i < count; i++) to[i] = software_gpu::tf32(from[i], truncate);
    }
}

void add_product(float* sum, const ProductInput& a, const ProductInput& b, size_t m, ProductRange columns,
                 ProductRange terms, bool truncates) {
    thread_local std::vector<float> a_block, b_block;
    const size_t n = columns.end - columns.begin;
    a_block.resize(block_rows * block_terms);
    b_block.resize(std::max(b_block.size(), rounded_up(n, tile_columns) * block_terms));
    for (size_t k = terms.begin; k < terms.end; k += block_terms) {
        const ProductRange block{k, std::min(terms.end, k + block_terms)};
        const size_t count = block.end - block.begin;
        pack(b_block.data(), b, b.transposed, tile_columns, columns, block);
        for (size_t i = 0; i < m; i += block_rows) {
            const size_t rows = std::min(block_rows, m - i);
            pack(a_block.data(), a, !a.transposed, tile_rows, {i, i + rows}, block);
            const Truncation truncation(truncates);
            multiply_block(sum + i, m, rows, n, a_block.data(), b_block.data(), count);
        }
    }
}

}  // namespace software_gpu
