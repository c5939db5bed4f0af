// int8_words.h: exact sums of products of int8, several to a 32-bit lane, on the CPU
//   A word of a factor holds four int8 where the processor has AVX512_VNNI, whose instruction multiplies
//   four unsigned bytes by four signed ones and adds them up; elsewhere it holds two int16. With VNNI the
//   weights are the unsigned factor, offset by 128, so that a lane's sum must begin with -128 times the sum
//   of what its weights are multiplied by (its compensation).
//   Sums of a hundred products of two int8 are far from overflowing a lane. They are exact, and so the same
//   on every processor.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "kernels/simt/target.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace simt {

typedef int32_t Words __attribute__((vector_size(cpu_vector_bytes), aligned(4), may_alias));

// The vectors of AVX2, and not those of AVX-512 without its instructions for bytes.
#if defined(__AVX2__) && !defined(__AVX512F__)
#define SIMT_AVX2_WORDS
#endif

#ifdef __AVX512VNNI__
constexpr bool multiplies_int8 = true;
#else
constexpr bool multiplies_int8 = false;
#endif
// True if add_products is an instruction or two.
#if defined(__AVX512BW__) || defined(SIMT_AVX2_WORDS)
constexpr bool multiplies_words = true;
#else
constexpr bool multiplies_words = false;
#endif
using WordElement = std::conditional_t<multiplies_int8, int8_t, int16_t>;
constexpr int word_elements = sizeof(int32_t) / sizeof(WordElement);
constexpr int weights_offset = multiplies_int8 ? 128 : 0;

// As many weights as fill the lanes.
inline Words load_weights(const int8_t* from) {
#if defined(__AVX512VNNI__)
    Words bytes;
    std::memcpy(&bytes, from, sizeof(bytes));
    return bytes ^ static_cast<int32_t>(0x80808080u);
#elif defined(__AVX512BW__)
    return reinterpret_cast<Words>(
        _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(SIMT_AVX2_WORDS)
    return reinterpret_cast<Words>(
        _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
    int16_t pairs[sizeof(Words) / sizeof(int16_t)];
    std::copy(from, from + std::size(pairs), pairs);
    Words words;
    std::memcpy(&words, pairs, sizeof(words));
    return words;
#endif
}

// sum + the products of the elements of each lane
inline Words add_products(Words sum, Words weights, Words x) {
#if defined(__AVX512VNNI__)
    return reinterpret_cast<Words>(_mm512_dpbusd_epi32(
        reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(weights), reinterpret_cast<__m512i>(x)));
#elif defined(__AVX512BW__)
    return sum + reinterpret_cast<Words>(
                     _mm512_madd_epi16(reinterpret_cast<__m512i>(weights), reinterpret_cast<__m512i>(x)));
#elif defined(SIMT_AVX2_WORDS)
    return sum + reinterpret_cast<Words>(
                     _mm256_madd_epi16(reinterpret_cast<__m256i>(weights), reinterpret_cast<__m256i>(x)));
#else
    return sum + (weights << 16 >> 16) * (x << 16 >> 16) + (weights >> 16) * (x >> 16);
#endif
}

}  // namespace simt
