// execute.cpp: the effect of each opcode, and the order in which blocks, warps and lanes execute
//   Written from the PTX ISA, not from kernels/simt, so that two independent readings of it must agree.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "warp.h"

namespace software_gpu {

void fault(const Warp& warp, const Instruction& instruction, uint32_t lane, const std::string& what) {
    const Block& block = *warp.block;
    const Function& function = *block.grid->function;
    throw Fault(fmt::format("{} ({}, {}, block {} {} {}, thread {}; {})", what, function.name,
                            function.source(instruction), block.x, block.y, block.z,
                            warp.index * lanes + lane, function.texts[instruction.text]));
}

namespace {

struct Predicate {};
using half = uint16_t;  // the bits of 16-bit registers

// ----------------------------------------------------------------------------------------------------
// opcodes that compute each lane from the same lane of other registers

template <auto f, class D, class... S, size_t... k>
void map_lanes(Warp& warp, const Instruction& i, std::index_sequence<k...>) {
    D* const out = warp.at<D>(i.operand[0]);
    const auto compute = [&](uint32_t lane) {
        return static_cast<D>(f(warp.at<const S>(i.operand[k + 1])[lane]...));
    };
    const uint32_t mask = warp.mask;
    if (mask == ~0u) {
#pragma GCC ivdep
        for (uint32_t lane = 0; lane < lanes; lane++) out[lane] = compute(lane);
    } else {
        each_lane(mask, [&](uint32_t lane) { out[lane] = compute(lane); });
    }
}
template <auto f, class D, class... S>
void lanewise(Warp& warp, const Instruction& i) {
    map_lanes<f, D, S...>(warp, i, std::index_sequence_for<S...>{});
}

template <auto f, class S>
void compare(Warp& warp, const Instruction& i) {
    const S *const a = warp.at<S>(i.operand[1]), *const b = warp.at<S>(i.operand[2]);
    uint32_t result = 0;
    for (uint32_t lane = 0; lane < lanes; lane++)
        result |= static_cast<uint32_t>(f(a[lane], b[lane])) << lane;
    uint32_t& to = warp.predicate(i.operand[0]);
    to = (to & ~warp.mask) | (result & warp.mask);
}

template <class T>
void select(Warp& warp, const Instruction& i) {
    const T *const a = warp.at<T>(i.operand[1]), *const b = warp.at<T>(i.operand[2]);
    T* const out = warp.at<T>(i.operand[0]);
    const uint32_t choice = warp.predicate(i.operand[3]), mask = warp.mask;
    T chosen[lanes];
    for (uint32_t lane = 0; lane < lanes; lane++) chosen[lane] = choice >> lane & 1 ? a[lane] : b[lane];
    for (uint32_t lane = 0; lane < lanes; lane++) out[lane] = mask >> lane & 1 ? chosen[lane] : out[lane];
}

template <auto f>
void of_predicates(Warp& warp, const Instruction& i) {
    uint32_t& to = warp.predicate(i.operand[0]);
    to = (to & ~warp.mask) | (f(warp.predicate(i.operand[1]), warp.predicate(i.operand[2])) & warp.mask);
}
template <auto f>
void of_predicate(Warp& warp, const Instruction& i) {
    uint32_t& to = warp.predicate(i.operand[0]);
    to = (to & ~warp.mask) | (f(warp.predicate(i.operand[1])) & warp.mask);
}

// max: a NaN loses, and +0 is above -0.
template <class T>
T largest(T a, T b) {
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return std::signbit(a) ? b : a;
    return a > b ? a : b;
}
template <class T>
T smallest(T a, T b) {
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return std::signbit(a) ? a : b;
    return a < b ? a : b;
}

// a * b + c rounded towards minus infinity. The product is exact in double; the sum's rounding error is
// computed by two-sum.
float fma_down(float a, float b, float c) {
    const double product = static_cast<double>(a) * b, addend = c, sum = product + addend;
    const double part = sum - product, error = (product - (sum - part)) + (addend - part);
    float rounded = static_cast<float>(sum);
    if (std::isfinite(rounded) &&
        (static_cast<double>(rounded) > sum || (static_cast<double>(rounded) == sum && error < 0)))
        rounded = std::nextafter(rounded, -std::numeric_limits<float>::infinity());
    return rounded;
}

template <class T>
T shifted_left(T value, uint32_t by) {
    return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(value << by);
}
template <class T>
T shifted_right(T value, uint32_t by) {
    constexpr uint32_t bits = 8 * sizeof(T);
    if (by >= bits) return value < T{0} ? static_cast<T>(-1) : T{0};
    return static_cast<T>(value >> by);
}
// bfe: the field of length bits from position on; a signed one is extended from its highest bit that exists.
template <class T>
T field(T value, uint32_t position, uint32_t length) {
    using U = std::make_unsigned_t<T>;
    constexpr uint32_t bits = 8 * sizeof(T);
    position &= 0xFF, length &= 0xFF;
    const auto bit = [&](uint32_t at) { return static_cast<U>(value) >> at & 1; };
    const uint32_t top = std::min(position + length - 1, bits - 1);
    const U sign = std::is_signed_v<T> && length > 0 ? bit(top) : 0;
    U result = sign ? static_cast<U>(-1) : U{0};
    for (uint32_t k = 0; k < bits && k < length; k++) {
        const U found = position + k < bits ? bit(position + k) : sign;
        result = static_cast<U>((result & ~(U{1} << k)) | found << k);
    }
    return static_cast<T>(result);
}
template <class T>
T field_inserted(T field, T into, uint32_t position, uint32_t length) {
    constexpr uint32_t bits = 8 * sizeof(T);
    position &= 0xFF, length &= 0xFF;
    T result = into;
    for (uint32_t k = 0; k < length && position + k < bits; k++)
        result = static_cast<T>((result & ~(T{1} << (position + k))) | (field >> k & 1) << (position + k));
    return result;
}
uint32_t funnel_left(uint32_t low, uint32_t high, uint32_t by) {
    by &= 31;
    return by == 0 ? high : high << by | low >> (32 - by);
}

// Each of the selector's four lowest hexadecimal digits picks a byte of `low` (0 to 3) or `high` (4 to 7);
// 8 more picks that byte's sign instead, in all eight bits.
uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
    const uint64_t bytes = uint64_t{high} << 32 | low;
    uint32_t permuted = 0;
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t digit = selector >> 4 * k & 15, byte = bytes >> 8 * (digit & 7) & 0xff;
        permuted |= (digit < 8 ? byte : byte >> 7 ? 0xffu : 0u) << 8 * k;
    }
    return permuted;
}
// PTX leaves the result of a division by zero undefined; here it is all ones, which no test expects.
template <class T>
T quotient(T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(0 - a);
    return static_cast<T>(a / b);
}
template <class T>
T remainder_of(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
}

half bits_of_bf16(float value) {
    uint32_t bits = std::bit_cast<uint32_t>(value);
    if (value != value) return 0x7FFF;  // PTX: the canonical NaN
    bits += 0x7FFF + (bits >> 16 & 1);  // to nearest, ties to even
    return static_cast<half>(bits >> 16);
}
float float_of_bf16(half bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
float flushed(float value) {
    return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

// ----------------------------------------------------------------------------------------------------
// approximate instructions: the exact value, moved by the largest error that the PTX ISA documents if the
// settings request it

float approximated(const Warp& warp, double exact, double most_ulps) {
    const Settings& settings = warp.block->grid->settings;
    const float nearest = static_cast<float>(exact);
    bool up = false;
    switch (settings.approximation) {
        case Settings::Approximation::nearest: return nearest;
        case Settings::Approximation::up: up = true; break;
        case Settings::Approximation::down: break;
        case Settings::Approximation::seeded:  // equal for the same operands, as on any GPU
            up = ((std::bit_cast<uint64_t>(exact) ^ settings.seed) * 0x9E3779B97F4A7C15u) >> 63;
            break;
    }
    if (!std::isfinite(nearest) || std::fabs(exact) <= 0x1p-126) return nearest;
    const double most = most_ulps * std::ldexp(1.0, std::ilogb(exact) - 23);
    const double target = exact + (up ? most : -most);
    const float moved = static_cast<float>(target);
    // The documented error is that of the rounded result.
    return std::fabs(moved - exact) > most ? std::nextafter(moved, nearest) : moved;
}

// 2 ulp at most; 2^0 is exact, by the table of special values
void ex2_approx_ftz(Warp& warp, const Instruction& i) {
    float *const out = warp.at<float>(i.operand[0]), *const a = warp.at<float>(i.operand[1]);
    each_lane(warp.mask, [&](uint32_t lane) {
        const float exponent = flushed(a[lane]);
        out[lane] =
            exponent == 0 ? 1.0f : flushed(approximated(warp, std::exp2(static_cast<double>(exponent)), 2));
    });
}
// 2^-22.9 of the result, by the ISA of today; 2^-22.4 by older ones, which is 1.5 ulp of a number just above
// a power of two
void rsqrt_approx(Warp& warp, const Instruction& i) {
    float *const out = warp.at<float>(i.operand[0]), *const a = warp.at<float>(i.operand[1]);
    each_lane(warp.mask, [&](uint32_t lane) {
        out[lane] = approximated(warp, 1 / std::sqrt(static_cast<double>(a[lane])), 1.5);
    });
}
// 2 ulp for a divisor of 2^-126 to 2^126; larger divisors give 0, and NaN for an infinite dividend
void div_approx(Warp& warp, const Instruction& i) {
    float *const out = warp.at<float>(i.operand[0]), *const a = warp.at<float>(i.operand[1]),
                 *const b = warp.at<float>(i.operand[2]);
    each_lane(warp.mask, [&](uint32_t lane) {
        const double divisor = b[lane];
        if (std::isfinite(b[lane]) && std::fabs(divisor) > 0x1p126)
            out[lane] = std::isinf(a[lane]) ? std::numeric_limits<float>::quiet_NaN()
                                            : std::copysign(0.0f, a[lane] * std::copysign(1.0f, b[lane]));
        else out[lane] = approximated(warp, static_cast<double>(a[lane]) / divisor, 2);
    });
}
// A coarse reciprocal: the upper word of the result, the lower one is zero.
void rcp_approx_f64(Warp& warp, const Instruction& i) {
    double *const out = warp.at<double>(i.operand[0]), *const a = warp.at<double>(i.operand[1]);
    each_lane(warp.mask, [&](uint32_t lane) {
        out[lane] = std::bit_cast<double>(std::bit_cast<uint64_t>(1 / a[lane]) & 0xFFFFFFFF00000000u);
    });
}

// ----------------------------------------------------------------------------------------------------
// conversions

enum class Rounding { exact, nearest, to_zero, saturate };

template <class D, class S, Rounding rounding>
D converted(S value) {
    if constexpr (std::is_floating_point_v<S> && std::is_integral_v<D>) {
        if (value != value) {  // PTX: zero, but the lowest number where either side has 64 bits
            const bool wide = sizeof(S) == 8 || sizeof(D) == 8;
            return wide ? static_cast<D>(std::make_unsigned_t<D>{1} << (8 * sizeof(D) - 1)) : D{0};
        }
        const S whole = rounding == Rounding::nearest ? std::nearbyint(value) : std::trunc(value);
        constexpr S above = static_cast<S>(std::numeric_limits<D>::max()),
                    below = static_cast<S>(std::numeric_limits<D>::min());
        if (whole >= above) return std::numeric_limits<D>::max();
        if (whole <= below) return std::numeric_limits<D>::min();
        return static_cast<D>(whole);
    } else if constexpr (std::is_floating_point_v<S> && std::is_same_v<S, D>) {
        if constexpr (rounding == Rounding::saturate)
            return value != value || value < 0 ? D{0} : value > 1 ? D{1} : value;
        else if constexpr (rounding == Rounding::nearest) return std::nearbyint(value);
        else if constexpr (rounding == Rounding::to_zero) return std::trunc(value);
        else return value;
    } else {
        return static_cast<D>(value);  // to nearest for .rn; integers are truncated or extended
    }
}

// The lanes' values, of registers that may be wider.
template <class T>
void narrow(const std::byte* from, uint32_t width, T* values) {
    for (uint32_t lane = 0; lane < lanes; lane++) std::memcpy(&values[lane], from + lane * width, sizeof(T));
}

template <class D, class S, Rounding rounding>
void convert(Warp& warp, const Instruction& i) {
    S values[lanes];
    narrow(warp.registers + i.operand[1], i.width[1], values);
    each_lane(warp.mask, [&](uint32_t lane) {
        const D result = converted<D, S, rounding>(values[lane]);
        std::byte* const place = warp.registers + i.operand[0] + lane * i.width[0];
        if (i.width[0] > sizeof(D)) {  // a wider register is sign-extended
            const int64_t wide = static_cast<int64_t>(result);
            std::memcpy(place, &wide, std::min<uint32_t>(i.width[0], sizeof(wide)));
        } else {
            std::memcpy(place, &result, sizeof(D));
        }
    });
}
void convert_bf16(Warp& warp, const Instruction& i) {
    half* const out = warp.at<half>(i.operand[0]);
    const float* const a = warp.at<float>(i.operand[1]);
    each_lane(warp.mask, [&](uint32_t lane) { out[lane] = bits_of_bf16(a[lane]); });
}

template <class D, class S>
Handler converter(Rounding rounding) {
    switch (rounding) {
        case Rounding::exact: return convert<D, S, Rounding::exact>;
        case Rounding::nearest: return convert<D, S, Rounding::nearest>;
        case Rounding::to_zero: return convert<D, S, Rounding::to_zero>;
        case Rounding::saturate: return convert<D, S, Rounding::saturate>;
    }
    return nullptr;
}
template <class D>
Handler converter_from(std::string_view source, Rounding rounding) {
    if (source == "s8") return converter<D, int8_t>(rounding);
    if (source == "s16") return converter<D, int16_t>(rounding);
    if (source == "s32") return converter<D, int32_t>(rounding);
    if (source == "s64") return converter<D, int64_t>(rounding);
    if (source == "u8") return converter<D, uint8_t>(rounding);
    if (source == "u16") return converter<D, uint16_t>(rounding);
    if (source == "u32") return converter<D, uint32_t>(rounding);
    if (source == "u64") return converter<D, uint64_t>(rounding);
    if (source == "f32") return converter<D, float>(rounding);
    if (source == "f64") return converter<D, double>(rounding);
    return nullptr;
}

// ----------------------------------------------------------------------------------------------------
// opcodes of a whole warp

// shfl.sync: the PTX ISA's formulas for the lane to read from. The operands: result, whether it is in range,
// value, b, c, members.
template <char mode>
void shuffle(Warp& warp, const Instruction& i) {
    const uint32_t* const value = warp.at<uint32_t>(i.operand[2]);
    const uint32_t *const b = warp.at<uint32_t>(i.operand[3]), *const c = warp.at<uint32_t>(i.operand[4]);
    uint32_t result[lanes] = {}, in_range = 0;
    each_lane(warp.mask, [&](uint32_t lane) {
        const uint32_t by = b[lane] & 31, clamp = c[lane] & 31, segments = c[lane] >> 8 & 31;
        const uint32_t most = (lane & segments) | (clamp & ~segments & 31), least = lane & segments;
        int32_t from = 0;
        bool valid = false;
        if constexpr (mode == 'u')
            from = static_cast<int32_t>(lane) - static_cast<int32_t>(by),
            valid = from >= static_cast<int32_t>(most);
        if constexpr (mode == 'd')
            from = static_cast<int32_t>(lane + by), valid = from <= static_cast<int32_t>(most);
        if constexpr (mode == 'b')
            from = static_cast<int32_t>(lane ^ by), valid = from <= static_cast<int32_t>(most);
        if constexpr (mode == 'i')
            from = static_cast<int32_t>(least | (by & ~segments)), valid = from <= static_cast<int32_t>(most);
        if (!valid) from = static_cast<int32_t>(lane);
        if (!(warp.mask >> from & 1))
            fault(warp, i, lane, fmt::format("a shuffle from lane {}, which does not take part", from));
        result[lane] = value[from];
        in_range |= static_cast<uint32_t>(valid) << lane;
    });
    uint32_t* const out = warp.at<uint32_t>(i.operand[0]);
    each_lane(warp.mask, [&](uint32_t lane) { out[lane] = result[lane]; });
    uint32_t& to = warp.predicate(i.operand[1]);
    to = (to & ~warp.mask) | in_range;
}

// The sum of products as tensor cores add: every term is truncated at the last bit that the largest of
// them keeps.
float truncated_sum(float sum, const double* products, uint32_t count) {
    const double start = sum;
    int exponent = sum == 0 ? -1000 : std::ilogb(start);
    for (uint32_t k = 0; k < count; k++) {
        if (products[k] != 0 && std::isfinite(products[k]))
            exponent = std::max(exponent, std::ilogb(products[k]));
        if (!std::isfinite(products[k])) exponent = 1000;
    }
    double total = 0;
    if (exponent == 1000 || !std::isfinite(start)) {
        total = start;
        for (uint32_t k = 0; k < count; k++) total += products[k];
        return static_cast<float>(total);
    }
    if (exponent == -1000) return sum;
    const double unit = std::ldexp(1.0, exponent - 23);
    total = std::trunc(start / unit);
    for (uint32_t k = 0; k < count; k++) total += std::trunc(products[k] / unit);
    total *= unit;
    const float rounded = static_cast<float>(total);  // towards zero
    return std::fabs(static_cast<double>(rounded)) > std::fabs(total) ? std::nextafter(rounded, 0.0f)
                                                                      : rounded;
}

// mma.m16n8k16 of bf16: the fragments' layout as in the figures of the PTX ISA, group = lane / 4 and member =
// lane % 4.
void mma_16_8_16(Warp& warp, const Instruction& i) {
    float a[16][16], b[8][16], c[16][8];
    const auto low = [](uint32_t pair) { return float_of_bf16(static_cast<half>(pair)); };
    const auto high = [](uint32_t pair) { return float_of_bf16(static_cast<half>(pair >> 16)); };
    for (uint32_t lane = 0; lane < lanes; lane++) {
        const uint32_t group = lane / 4, member = lane % 4;
        for (uint32_t r = 0; r < 4; r++) {  // a0 a1, a2 a3 (8 rows on), a4 a5 (8 columns on), a6 a7
            const uint32_t pair = warp.at<uint32_t>(i.operand[4 + r])[lane], row = group + (r % 2) * 8,
                           column = member * 2 + (r / 2) * 8;
            a[row][column] = low(pair), a[row][column + 1] = high(pair);
        }
        for (uint32_t r = 0; r < 2; r++) {
            const uint32_t pair = warp.at<uint32_t>(i.operand[8 + r])[lane], row = member * 2 + r * 8;
            b[group][row] = low(pair), b[group][row + 1] = high(pair);
        }
        for (uint32_t r = 0; r < 4; r++)
            c[group + r / 2 * 8][member * 2 + r % 2] = warp.at<float>(i.operand[10 + r])[lane];
    }
    const bool truncates = warp.block->grid->settings.tensor_cores_truncate;
    for (uint32_t row = 0; row < 16; row++) {
        for (uint32_t column = 0; column < 8; column++) {
            if (truncates) {  // eight products at a time, as on sm_80
                double products[16];
                for (uint32_t k = 0; k < 16; k++) products[k] = static_cast<double>(a[row][k]) * b[column][k];
                c[row][column] = truncated_sum(truncated_sum(c[row][column], products, 8), products + 8, 8);
            } else {
                double sum = c[row][column];
                for (uint32_t k = 0; k < 16; k++) sum += static_cast<double>(a[row][k]) * b[column][k];
                c[row][column] = static_cast<float>(sum);
            }
        }
    }
    for (uint32_t lane = 0; lane < lanes; lane++) {
        const uint32_t group = lane / 4, member = lane % 4;
        for (uint32_t r = 0; r < 4; r++)
            warp.at<float>(i.operand[r])[lane] = c[group + r / 2 * 8][member * 2 + r % 2];
    }
}

void barrier_of_warp(Warp& warp, const Instruction&) { warp.barriers++; }

// The address and the value are operands first and first + 1.
template <class T, bool increments, class Take>
void change_word(Warp& warp, const Instruction& i, size_t first, const Take& take) {
    const uint64_t* const address = warp.at<uint64_t>(i.operand[first]);
    const T* const value = warp.at<T>(i.operand[first + 1]);
    each_lane(warp.mask, [&](uint32_t lane) {
        auto* const word = static_cast<T*>(
            atomic_word(warp, i, lane, address[lane] + static_cast<uint64_t>(i.offset), sizeof(T)));
        const T before = *word;
        *word = increments ? (before >= value[lane] ? T{0} : before + 1) : before + value[lane];
        take(lane, before);
    });
}

template <class T, bool increments>
void atomic(Warp& warp, const Instruction& i) {
    T* const old = warp.at<T>(i.operand[0]);
    change_word<T, increments>(warp, i, 1, [&](uint32_t lane, T before) { old[lane] = before; });
}
// An atomic operation whose old value nobody reads, so that it orders no later read after other blocks'
// stores. nvcc 12.4 writes `red` where 13.0 writes `atom`.
template <class T, bool increments>
void reduction(Warp& warp, const Instruction& i) {
    const bool acquired = warp.block->acquired;
    change_word<T, increments>(warp, i, 0, [](uint32_t, T) {});
    warp.block->acquired = acquired;
}

// {a, b} of one register, the first in its lowest bits
void unpack(Warp& warp, const Instruction& i) {
    each_lane(warp.mask, [&](uint32_t lane) {
        const uint32_t part = i.width[0] / i.count;
        std::byte value[8];
        std::memcpy(value, warp.registers + i.operand[0] + lane * i.width[0], i.width[0]);
        for (uint32_t k = 0; k < i.count; k++)
            std::memcpy(warp.registers + i.operand[k + 1] + lane * part, value + k * part, part);
    });
}
void pack(Warp& warp, const Instruction& i) {
    each_lane(warp.mask, [&](uint32_t lane) {
        const uint32_t part = i.width[0] / i.count;
        std::byte value[8];
        for (uint32_t k = 0; k < i.count; k++)
            std::memcpy(value + k * part, warp.registers + i.operand[k + 1] + lane * part, part);
        std::memcpy(warp.registers + i.operand[0] + lane * i.width[0], value, i.width[0]);
    });
}

// ----------------------------------------------------------------------------------------------------
// the table of opcodes

template <class T>
constexpr char kind = std::is_same_v<T, Predicate> ? 'p'
                      : sizeof(T) == 2             ? 'h'
                      : sizeof(T) == 4             ? 'w'
                                                   : 'd';

using Table = std::unordered_map<std::string, Opcode>;

template <auto f, class D, class... S>
void add(Table& table, const std::string& name) {
    table[name] = {lanewise<f, D, S...>, std::string{kind<D>, kind<S>...}};
}
template <auto f, class S>
void add_compare(Table& table, const std::string& name) {
    table[name] = {compare<f, S>, std::string{'p', kind<S>, kind<S>}};
}

template <class T>
void add_moves(Table& table, const std::string& type) {
    add<[](T a) { return a; }, T, T>(table, "mov." + type);
    table["selp." + type] = {select<T>, std::string{kind<T>, kind<T>, kind<T>, 'p'}};
}

template <class T>
void add_comparisons(Table& table, const std::string& type) {
    add_compare<[](T a, T b) { return a == b; }, T>(table, "setp.eq." + type);
    add_compare<[](T a, T b) { return a != b && a == a && b == b; }, T>(table, "setp.ne." + type);
    add_compare<[](T a, T b) { return a < b; }, T>(table, "setp.lt." + type);
    add_compare<[](T a, T b) { return a <= b; }, T>(table, "setp.le." + type);
    add_compare<[](T a, T b) { return (a > b); }, T>(table, "setp.gt." + type);
    add_compare<[](T a, T b) { return a >= b; }, T>(table, "setp.ge." + type);
}

template <class T>
void add_integers(Table& table, const std::string& type) {
    using U = std::make_unsigned_t<T>;
    add_comparisons<T>(table, type);
    add<[](U a, U b) { return a + b; }, U, U, U>(table, "add." + type);
    add<[](U a, U b) { return a - b; }, U, U, U>(table, "sub." + type);
    add<[](uint64_t a, uint64_t b) { return a * b; }, U, U, U>(table, "mul.lo." + type);
    add<[](uint64_t a, uint64_t b, uint64_t c) { return a * b + c; }, U, U, U, U>(table, "mad.lo." + type);
    add<quotient<T>, T, T, T>(table, "div." + type);
    add<remainder_of<T>, T, T, T>(table, "rem." + type);
    add<[](T a, T b) { return a < b ? a : b; }, T, T, T>(table, "min." + type);
    add<[](T a, T b) { return (a > b) ? a : b; }, T, T, T>(table, "max." + type);
    add<shifted_right<T>, T, T, uint32_t>(table, "shr." + type);
    if constexpr (sizeof(T) >= 4) add<field<T>, T, T, uint32_t, uint32_t>(table, "bfe." + type);
    if constexpr (std::is_signed_v<T>) {
        add<[](U a) { return 0 - a; }, U, U>(table, "neg." + type);
        add<[](T a) { return a < 0 ? static_cast<T>(0 - static_cast<U>(a)) : a; }, T, T>(table,
                                                                                         "abs." + type);
    }
}
template <class T, class Wide>
void add_wide(Table& table, const std::string& type) {
    add<[](Wide a, Wide b) { return a * b; }, Wide, T, T>(table, "mul.wide." + type);
    add<[](Wide a, Wide b, Wide c) { return a * b + c; }, Wide, T, T, Wide>(table, "mad.wide." + type);
}
template <class T>
void add_bits(Table& table, const std::string& type) {
    add<[](T a, T b) { return a & b; }, T, T, T>(table, "and." + type);
    add<[](T a, T b) { return a | b; }, T, T, T>(table, "or." + type);
    add<[](T a, T b) { return a ^ b; }, T, T, T>(table, "xor." + type);
    add<[](T a) { return ~a; }, T, T>(table, "not." + type);
    add<shifted_left<T>, T, T, uint32_t>(table, "shl." + type);
    add<shifted_right<T>, T, T, uint32_t>(table, "shr." + type);
    add_compare<[](T a, T b) { return a == b; }, T>(table, "setp.eq." + type);
    add_compare<[](T a, T b) { return a != b; }, T>(table, "setp.ne." + type);
    if constexpr (sizeof(T) >= 4) add<field_inserted<T>, T, T, T, uint32_t, uint32_t>(table, "bfi." + type);
}
template <class T>
void add_floats(Table& table, const std::string& type) {
    add_comparisons<T>(table, type);
    add_compare<[](T a, T b) { return !(a != b) || a != a || b != b; }, T>(table, "setp.equ." + type);
    add_compare<[](T a, T b) { return a != b; }, T>(table, "setp.neu." + type);
    add_compare<[](T a, T b) { return !(a >= b); }, T>(table, "setp.ltu." + type);
    add_compare<[](T a, T b) { return !(a > b); }, T>(table, "setp.leu." + type);
    add_compare<[](T a, T b) { return !(a <= b); }, T>(table, "setp.gtu." + type);
    add_compare<[](T a, T b) { return !(a < b); }, T>(table, "setp.geu." + type);
    add_compare<[](T a, T b) { return a == a && b == b; }, T>(table, "setp.num." + type);
    add_compare<[](T a, T b) { return a != a || b != b; }, T>(table, "setp.nan." + type);
    for (const std::string rounding : {"", "rn."}) {
        add<[](T a, T b) { return a + b; }, T, T, T>(table, "add." + rounding + type);
        add<[](T a, T b) { return a - b; }, T, T, T>(table, "sub." + rounding + type);
        add<[](T a, T b) { return a * b; }, T, T, T>(table, "mul." + rounding + type);
    }
    add<[](T a, T b, T c) { return std::fma(a, b, c); }, T, T, T, T>(table, "fma.rn." + type);
    add<[](T a, T b) { return a / b; }, T, T, T>(table, "div.rn." + type);
    add<[](T a) { return 1 / a; }, T, T>(table, "rcp.rn." + type);
    add<[](T a) { return std::sqrt(a); }, T, T>(table, "sqrt.rn." + type);
    add<[](T a) { return -a; }, T, T>(table, "neg." + type);
    add<[](T a) { return std::fabs(a); }, T, T>(table, "abs." + type);
    add<largest<T>, T, T, T>(table, "max." + type);
    add<smallest<T>, T, T, T>(table, "min." + type);
}

Table make_table() {
    Table table;
    for (const std::string type : {"b16", "u16", "s16"}) add_moves<uint16_t>(table, type);
    for (const std::string type : {"b32", "u32", "s32", "f32"}) add_moves<uint32_t>(table, type);
    for (const std::string type : {"b64", "u64", "s64", "f64"}) add_moves<uint64_t>(table, type);
    add_integers<uint16_t>(table, "u16");
    add_integers<int16_t>(table, "s16");
    add_integers<uint32_t>(table, "u32");
    add_integers<int32_t>(table, "s32");
    add_integers<uint64_t>(table, "u64");
    add_integers<int64_t>(table, "s64");
    add_wide<uint16_t, uint32_t>(table, "u16");
    add_wide<int16_t, int32_t>(table, "s16");
    add_wide<uint32_t, uint64_t>(table, "u32");
    add_wide<int32_t, int64_t>(table, "s32");
    add_bits<uint16_t>(table, "b16");
    add_bits<uint32_t>(table, "b32");
    add_bits<uint64_t>(table, "b64");
    add<funnel_left, uint32_t, uint32_t, uint32_t, uint32_t>(table, "shf.l.wrap.b32");
    add<permute_bytes, uint32_t, uint32_t, uint32_t, uint32_t>(table, "prmt.b32");
    add_floats<float>(table, "f32");
    add_floats<double>(table, "f64");
    add<fma_down, float, float, float, float>(table, "fma.rm.f32");
    add<[](float first, float second) { return uint32_t{bits_of_bf16(first)} << 16 | bits_of_bf16(second); },
        uint32_t, float, float>(table, "cvt.rn.bf16x2.f32");
    table["mov.pred"] = {of_predicate<[](uint32_t a) { return a; }>, "pp"};
    table["not.pred"] = {of_predicate<[](uint32_t a) { return ~a; }>, "pp"};
    table["and.pred"] = {of_predicates<[](uint32_t a, uint32_t b) { return a & b; }>, "ppp"};
    table["or.pred"] = {of_predicates<[](uint32_t a, uint32_t b) { return a | b; }>, "ppp"};
    table["xor.pred"] = {of_predicates<[](uint32_t a, uint32_t b) { return a ^ b; }>, "ppp"};
    table["ex2.approx.ftz.f32"] = {ex2_approx_ftz, "ww"};
    table["rsqrt.approx.f32"] = {rsqrt_approx, "ww"};
    table["div.approx.f32"] = {div_approx, "www"};
    table["rcp.approx.ftz.f64"] = {rcp_approx_f64, "dd"};
    for (const std::string to : {"global", "local", "shared"}) {
        if (to == "shared")
            add<[](uint64_t a) { return a & ~generic_shared; }, uint64_t, uint64_t>(table,
                                                                                    "cvta.to.shared.u64");
        else add<[](uint64_t a) { return a; }, uint64_t, uint64_t>(table, "cvta.to." + to + ".u64");
    }
    add<[](uint64_t a) { return a | generic_shared; }, uint64_t, uint64_t>(table, "cvta.shared.u64");
    table["shfl.sync.up.b32"] = {shuffle<'u'>, "wpwwww"};
    table["shfl.sync.down.b32"] = {shuffle<'d'>, "wpwwww"};
    table["shfl.sync.bfly.b32"] = {shuffle<'b'>, "wpwwww"};
    table["shfl.sync.idx.b32"] = {shuffle<'i'>, "wpwwww"};
    table["bar.warp.sync"] = {barrier_of_warp, "w"};
    table["bar.sync"] = {barrier_of_warp, "w"};
    table["membar.gl"] = {[](Warp& warp, const Instruction&) { note_fence(warp); }, ""};
    table["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"] = {mma_16_8_16, "wwwwwwwwwwwwww"};
    table["ldmatrix.sync.aligned.m8n8.x4.shared.b16"] = {
        [](Warp& warp, const Instruction& i) { load_matrices(warp, i, false); }, "wwwww"};
    table["ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"] = {
        [](Warp& warp, const Instruction& i) { load_matrices(warp, i, true); }, "wwwww"};
    table["cp.async.cg.shared.global"] = {begin_copy, "wdww"};
    table["cp.async.ca.shared.global"] = {begin_copy, "wdww"};
    table["cp.async.commit_group"] = {[](Warp& warp, const Instruction&) { commit_copies(warp); }, ""};
    table["cp.async.wait_group"] = {[](Warp& warp, const Instruction& i) {
                                        wait_for_copies(warp, i, warp.at<uint32_t>(i.operand[0])[0]);
                                    },
                                    "w"};
    table["atom.global.add.u32"] = {atomic<uint32_t, false>, "wdw"};
    table["atom.global.add.u64"] = {atomic<uint64_t, false>, "ddd"};
    table["atom.global.inc.u32"] = {atomic<uint32_t, true>, "wdw"};
    table["red.global.add.u32"] = {reduction<uint32_t, false>, "dw"};
    table["red.global.add.u64"] = {reduction<uint64_t, false>, "dd"};
    table["red.global.inc.u32"] = {reduction<uint32_t, true>, "dw"};
    return table;
}

}  // namespace

const Opcode& opcode_of(std::string_view name) {
    static const Table table = make_table();
    static const Opcode unknown;
    const auto found = table.find(std::string(name));
    return found == table.end() ? unknown : found->second;
}

// "rn.f32.s32", "s64.s32"
Handler convert_handler(std::string_view types) {
    std::vector<std::string_view> parts;
    for (size_t begin = 0; begin <= types.size();) {
        const size_t end = std::min(types.find('.', begin), types.size());
        parts.push_back(types.substr(begin, end - begin));
        begin = end + 1;
    }
    if (parts.size() < 2 || parts.size() > 3) return nullptr;
    Rounding rounding = Rounding::exact;
    const std::string_view destination = parts[parts.size() - 2], source = parts.back();
    const bool to_float = destination[0] == 'f';
    if (parts.size() == 3) {
        if (parts[0] == "rn" && destination == "bf16" && source == "f32") return convert_bf16;
        if (parts[0] == "rni") rounding = Rounding::nearest;
        else if (parts[0] == "rzi") rounding = Rounding::to_zero;
        else if (parts[0] == "sat" && to_float && source == destination) rounding = Rounding::saturate;
        else if (parts[0] != "rn" || !to_float || source == destination) return nullptr;
    } else if (to_float != (source[0] == 'f')) {
        return nullptr;  // between integers and floats a rounding must be named
    }
    if (destination == "s8") return converter_from<int8_t>(source, rounding);
    if (destination == "s16") return converter_from<int16_t>(source, rounding);
    if (destination == "s32") return converter_from<int32_t>(source, rounding);
    if (destination == "s64") return converter_from<int64_t>(source, rounding);
    if (destination == "u8") return converter_from<uint8_t>(source, rounding);
    if (destination == "u16") return converter_from<uint16_t>(source, rounding);
    if (destination == "u32") return converter_from<uint32_t>(source, rounding);
    if (destination == "u64") return converter_from<uint64_t>(source, rounding);
    if (destination == "f32") return converter_from<float>(source, rounding);
    if (destination == "f64") return converter_from<double>(source, rounding);
    return nullptr;
}
Handler pack_handler() { return pack; }
Handler unpack_handler() { return unpack; }

// ----------------------------------------------------------------------------------------------------
// the order of execution

namespace {

// The lanes that must be together at an instruction that several of them execute as one.
uint32_t members(Warp& warp, const Instruction& i, uint32_t active) {
    if (i.control == Control::block_sync) return warp.present;
    if (i.member_mask == all_lanes) return ~0u;  // .aligned: by whole warps only
    const uint32_t first = static_cast<uint32_t>(std::countr_zero(active));
    const uint32_t* const named = warp.at<uint32_t>(i.operand[i.member_mask]);
    each_lane(active, [&](uint32_t lane) {
        if (named[lane] != named[first])
            fault(warp, i, lane, "lanes that go together name different members");
    });
    return named[first] & warp.present;
}

// Lanes of a warp proceed in groups, the one furthest behind first, so that they meet again where their
// paths join.
class WarpRun {
public:
    explicit WarpRun(Warp& warp)
        : warp_(warp),
          code_(warp.block->grid->function->code.data()),
          executed_(warp.block->grid->executed) {}

    // Runs the warp until it reaches a barrier of its block, or its end.
    void go_on() {
        warp_.state = Warp::State::runs;
        while (warp_.state == Warp::State::runs) {
            join();
            Group* const next = furthest_behind();
            if (!next) stuck();
            run(*next);
        }
    }

private:
    void join() {
        auto& groups = warp_.groups;
        for (size_t a = 0; a < groups.size(); a++) {
            for (size_t b = groups.size(); b-- > a + 1;) {
                if (groups[a].pc != groups[b].pc) continue;
                groups[a].mask |= groups[b].mask;
                groups[a].waits = false;  // waiting groups check again, with the lanes that have arrived
                groups.erase(groups.begin() + static_cast<long>(b));
            }
        }
    }
    Group* furthest_behind() {
        Group* found = nullptr;
        for (Group& group : warp_.groups) {
            if (!group.waits && (!found || group.pc < found->pc)) found = &group;
        }
        return found;
    }
    uint32_t next_meeting(const Group& current) const {
        uint32_t nearest = std::numeric_limits<uint32_t>::max();
        for (const Group& group : warp_.groups) {
            if (&group != &current)
                nearest = std::min(nearest, group.pc > current.pc || !group.waits ? group.pc : nearest);
        }
        return nearest;
    }

    // Every lane waits for another one.
    [[noreturn]] void stuck() {
        const Group& group = warp_.groups.front();
        const Instruction& i = code_[group.pc];
        const uint32_t wanted = members(warp_, i, group.mask), missing = wanted & ~group.mask;
        const auto lane = static_cast<uint32_t>(std::countr_zero(missing));
        std::string what =
            fmt::format("lanes {:08x} of the warp wait for lane {}, which never comes", group.mask, lane);
        if (warp_.ended >> lane & 1) what += ": it has ended";
        for (const Group& other : warp_.groups) {
            if (other.mask >> lane & 1)
                what += fmt::format(": it waits at {}", warp_.block->grid->function->source(code_[other.pc]));
        }
        fault(warp_, i, static_cast<uint32_t>(std::countr_zero(group.mask)), what);
    }

    void run(Group& group) {
        uint32_t pc = group.pc;
        const uint32_t limit = next_meeting(group);
        const uint32_t active = group.mask;
        const size_t self = static_cast<size_t>(&group - warp_.groups.data());
        for (;;) {
            if (pc >= limit && pc != group.pc) break;
            const Instruction& i = code_[pc];
            uint32_t mask = active;
            if (i.guarded) {
                const uint32_t guard = warp_.predicate(static_cast<int32_t>(i.guard));
                mask &= i.guard_negated ? ~guard : guard;
            }
            if (!executed_.empty()) executed_[pc]++;
            warp_.mask = mask;
            if (i.control == Control::none) {
                if (mask) i.handler(warp_, i);
                pc++;
                continue;
            }
            if (i.control == Control::branch) {
                if (mask == active) {
                    const bool back = i.target <= pc;
                    pc = i.target;
                    if (back && warp_.groups.size() > 1) break;  // it may now be ahead of others
                } else if (mask == 0) {
                    pc++;
                } else {
                    warp_.groups.push_back({i.target, mask, false});
                    warp_.groups[self].pc = pc + 1;
                    warp_.groups[self].mask = active & ~mask;
                    return;
                }
                continue;
            }
            if (i.control == Control::exit) {
                warp_.ended |= mask;
                if (mask == active) {
                    warp_.groups.erase(warp_.groups.begin() + static_cast<long>(self));
                    if (warp_.groups.empty()) warp_.state = Warp::State::ended;
                    return;
                }
                warp_.groups[self].pc = pc + 1;
                warp_.groups[self].mask = active & ~mask;
                return;
            }
            if (mask == 0) {  // its guard is false for all lanes
                pc++;
                continue;
            }
            // All members together
            const uint32_t wanted = members(warp_, i, mask);
            if (mask & ~wanted)
                fault(warp_, i, static_cast<uint32_t>(std::countr_zero(mask & ~wanted)),
                      "a lane that is not among the members that it names");
            if (wanted & warp_.ended) {
                fault(warp_, i, static_cast<uint32_t>(std::countr_zero(mask)),
                      fmt::format("waits for lane {}, which has ended",
                                  std::countr_zero(wanted & warp_.ended)));
            }
            if (mask != wanted) {
                if (mask != active)
                    fault(warp_, i, static_cast<uint32_t>(std::countr_zero(wanted & ~mask)),
                          "a lane that its guard keeps from the others");
                group.pc = pc;
                group.waits = true;
                return;
            }
            i.handler(warp_, i);
            pc++;
            if (i.control == Control::block_sync) {
                warp_.barrier_pc = pc - 1;
                warp_.state = Warp::State::at_barrier;
                break;
            }
        }
        warp_.groups[self].pc = pc;
    }

    Warp& warp_;
    const Instruction* code_;
    std::vector<uint64_t>& executed_;
};

std::vector<uint32_t> in_order(Settings::Order order, uint32_t count, std::mt19937_64& random) {
    std::vector<uint32_t> all(count);
    for (uint32_t k = 0; k < count; k++) all[k] = order == Settings::Order::descending ? count - 1 - k : k;
    if (order == Settings::Order::seeded) std::shuffle(all.begin(), all.end(), random);
    return all;
}

void begin_block(Block& block, uint32_t index) {
    static uint32_t serial = 0;
    Grid& grid = *block.grid;
    const Dim& size = grid.launch->grid;
    block.index = index;
    block.x = index % size.x, block.y = index / size.x % size.y, block.z = index / size.x / size.y;
    block.barriers = 0;
    block.acquired = false;
    block.serial = ++serial;
    std::fill(block.shared.begin(), block.shared.end(), std::byte{0xFF});
    std::fill(block.written.begin(), block.written.end(), uint8_t{0});
    const Dim& threads = grid.launch->block;
    for (Warp& warp : block.warps) {
        warp.ended = 0;
        warp.state = Warp::State::runs;
        warp.barriers = 0;
        warp.groups.assign(1, {0, warp.present, false});
        std::fill(warp.local_written.begin(), warp.local_written.end(), std::byte{0});
        for (auto& copies : warp.copies) copies.clear();
        warp.copy_groups.fill(0);
        const auto set = [&](Special special, const auto& value) {
            uint32_t* const to = warp.at<uint32_t>(static_cast<int32_t>(place_of(special)));
            for (uint32_t lane = 0; lane < lanes; lane++) to[lane] = value(warp.index * lanes + lane);
        };
        set(Special::tid_x, [&](uint32_t thread) { return thread % threads.x; });
        set(Special::tid_y, [&](uint32_t thread) { return thread / threads.x % threads.y; });
        set(Special::tid_z, [&](uint32_t thread) { return thread / threads.x / threads.y; });
        set(Special::ntid_x, [&](uint32_t) { return threads.x; });
        set(Special::ntid_y, [&](uint32_t) { return threads.y; });
        set(Special::ntid_z, [&](uint32_t) { return threads.z; });
        set(Special::ctaid_x, [&](uint32_t) { return block.x; });
        set(Special::ctaid_y, [&](uint32_t) { return block.y; });
        set(Special::ctaid_z, [&](uint32_t) { return block.z; });
        set(Special::nctaid_x, [&](uint32_t) { return size.x; });
        set(Special::nctaid_y, [&](uint32_t) { return size.y; });
        set(Special::nctaid_z, [&](uint32_t) { return size.z; });
    }
}

void run_block(Block& block) {
    Grid& grid = *block.grid;
    const auto count = static_cast<uint32_t>(block.warps.size());
    for (;;) {
        for (const uint32_t index : in_order(grid.settings.order, count, grid.random)) {
            Warp& warp = block.warps[index];
            if (warp.state == Warp::State::runs) WarpRun(warp).go_on();
        }
        const Warp *waits = nullptr, *ended = nullptr;
        for (const Warp& warp : block.warps) (warp.state == Warp::State::at_barrier ? waits : ended) = &warp;
        if (!waits) return;
        if (ended) {
            fault(
                *waits, grid.function->code[waits->barrier_pc], 0,
                fmt::format("a barrier that warp {} of the block never reaches: it has ended", ended->index));
        }
        block.barriers++;
        for (Warp& warp : block.warps) warp.state = Warp::State::runs;
    }
}

void add_counters(Grid& grid) {
    Counters& counters = *grid.counters;
    counters.launches++;
    counters.blocks += grid.launch->grid.count();
    counters.threads_a_block = grid.launch->block.count();
    counters.dynamic_shared_bytes = grid.launch->dynamic_shared_bytes;
    counters.warps += grid.launch->grid.count() * ((grid.launch->block.count() + lanes - 1) / lanes);
    for (size_t k = 0; k < grid.executed.size(); k++) {
        if (grid.executed[k] > 0)
            counters.instructions[grid.function->classes[grid.function->code[k].text]] += grid.executed[k];
    }
}

}  // namespace

void run(const Kernel& kernel, const Launch& launch, Memory& memory, const Settings& settings,
         Counters* counters) {
    static uint32_t launches = 0;
    Grid grid;
    grid.function = kernel.function.get(), grid.launch = &launch, grid.memory = &memory,
    grid.settings = settings;
    grid.counters = counters;
    grid.number = ++launches;
    grid.random.seed(settings.seed * 0x9E3779B97F4A7C15u + grid.number);
    if (counters) grid.executed.resize(grid.function->code.size());

    const Function& function = *grid.function;
    Block block;
    block.grid = &grid;
    const size_t threads = launch.block.count(), warps = (threads + lanes - 1) / lanes,
                 file = function.registers.size();
    std::vector<std::byte> registers(warps * file + 64);
    auto* const first =
        reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(registers.data()) + 63) / 64 * 64);
    block.warps.resize(warps);
    for (uint32_t w = 0; w < warps; w++) {
        Warp& warp = block.warps[w];
        warp.block = &block;
        warp.index = w;
        warp.registers = first + w * file;
        std::memcpy(warp.registers, function.registers.data(), file);
        const size_t left = threads - w * lanes;
        warp.present = left >= lanes ? ~0u : (1u << left) - 1;
        warp.local.resize(function.local_bytes * lanes);
        warp.local_written.resize(function.local_bytes * lanes);
    }
    const size_t shared = function.dynamic_shared - shared_base + launch.dynamic_shared_bytes;
    block.shared.resize(shared);
    block.owner.resize(shared);
    block.written.resize(shared);
    block.writer.resize(shared / 4 + 2);
    block.reader.resize(shared / 4 + 2);
    uint8_t number = 0;
    for (const SharedVariable& variable : function.shared)
        std::memset(block.owner.data() + (variable.begin - shared_base), ++number, variable.bytes);
    std::fill(block.owner.begin() + (function.dynamic_shared - shared_base), block.owner.end(), uint8_t{255});

    for (const uint32_t index :
         in_order(settings.order, static_cast<uint32_t>(launch.grid.count()), grid.random)) {
        begin_block(block, index);
        run_block(block);
    }
    if (counters) add_counters(grid);
}

}  // namespace software_gpu
