// common.cuh: shared by the tests: seeded inputs, poisoned outputs, errors against an oracle, PyTorch's dumps
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/simt/simt.cuh"
#include "program.h"
#include "trainer/formats/safetensors.h"

// Values that T holds exactly, so that the oracle starts from the same inputs as the kernel.
template <class T>
std::vector<float> random_values(size_t count, unsigned seed, float scale = 1.0f, float offset = 0.0f) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<float> normal(offset, scale);
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(T(normal(generator)));
    return values;
}

template <class T>
simt::DeviceBuffer<T> upload(const std::vector<float>& values) {
    std::vector<T> converted(values.size());
    for (size_t i = 0; i < values.size(); i++) converted[i] = T(values[i]);
    simt::DeviceBuffer<T> buffer(values.size());
    simt::copy_to_device(buffer.data(), converted.data(), buffer.bytes(), nullptr);
    simt::stream_synchronize(nullptr);
    return buffer;
}
inline simt::DeviceBuffer<int> upload(const std::vector<int>& values) {
    simt::DeviceBuffer<int> buffer(values.size());
    simt::copy_to_device(buffer.data(), values.data(), buffer.bytes(), nullptr);
    simt::stream_synchronize(nullptr);
    return buffer;
}

// An output that has not been written: every element is a NaN.
template <class T>
simt::DeviceBuffer<T> poisoned(size_t count) {
    const std::vector<unsigned char> bytes(count * sizeof(T), 0xff);
    simt::DeviceBuffer<T> buffer(count);
    simt::copy_to_device(buffer.data(), bytes.data(), bytes.size(), nullptr);
    simt::stream_synchronize(nullptr);
    return buffer;
}

template <class T>
std::vector<float> download(const simt::DeviceBuffer<T>& buffer) {
    std::vector<T> raw(buffer.size());
    simt::copy_to_host(raw.data(), buffer.data(), buffer.bytes(), nullptr);
    simt::stream_synchronize(nullptr);
    std::vector<float> values(raw.size());
    for (size_t i = 0; i < raw.size(); i++) values[i] = static_cast<float>(raw[i]);
    return values;
}

// |actual - expected| / |expected|; a NaN anywhere makes it a NaN, which no EXPECT_LE accepts.
template <class Expected>
double relative_error(const std::vector<float>& actual, const Expected& expected) {
    EXPECT_EQ(actual.size(), expected.size());
    double difference = 0, norm = 0;
    for (size_t i = 0; i < actual.size(); i++) {
        const double d = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
        difference += d * d;
        norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    }
    return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

// Every element may be off by at most factor * eps * (the sum of the magnitudes of its terms).
inline void expect_elements(const std::vector<float>& actual, const std::vector<double>& expected,
                            const std::vector<double>& magnitude, double eps, double factor = 8) {
    ASSERT_EQ(actual.size(), expected.size());
    ASSERT_EQ(actual.size(), magnitude.size());
    for (size_t i = 0; i < actual.size(); i++) {
        ASSERT_LE(std::abs(static_cast<double>(actual[i]) - expected[i]), factor * eps * magnitude[i] + 1e-37)
            << "element " << i << " of " << actual.size() << ", expected " << expected[i];
    }
}

// Rounding unit of the type that a kernel stores.
template <class T>
constexpr double epsilon = 0x1p-24;
template <>
inline constexpr double epsilon<bfloat16> = 0x1p-8;

// The bound of a kernel that computes in fp32 and rounds its result to T once: 8 eps of the sum of the
// magnitudes of an element's terms, plus the rounding to T.
template <class T>
void expect_each_close(const std::vector<float>& actual, const std::vector<double>& expected,
                       const std::vector<double>& magnitude) {
    ASSERT_EQ(actual.size(), expected.size());
    ASSERT_EQ(actual.size(), magnitude.size());
    constexpr bool is_fp32 = std::is_same_v<T, float>;
    for (size_t i = 0; i < actual.size(); i++) {
        const double bound = 8 * epsilon<float> * magnitude[i] +
                             (is_fp32 ? 0 : 1.01 * epsilon<T> * std::abs(expected[i])) + 1e-37;
        ASSERT_LE(std::abs(static_cast<double>(actual[i]) - expected[i]), bound)
            << "element " << i << " of " << actual.size() << " is " << actual[i] << ", expected "
            << expected[i];
    }
}
// The error of the whole tensor may be 1e-5 (bf16: 1e-2) of its norm.
template <class T>
void expect_close(const std::vector<float>& actual, const std::vector<double>& expected,
                  const std::vector<double>& magnitude) {
    expect_each_close<T>(actual, expected, magnitude);
    EXPECT_LE(relative_error(actual, expected), (std::is_same_v<T, float> ? 1e-5 : 1e-2));
}

// test/reference/NAME.safetensors: numbers PyTorch computed (dev/reference.py).
inline SafetensorsFile reference(const std::string& name) {
    return SafetensorsFile(relocated(PROJECT_ROOT "/test/reference/" + name + ".safetensors"));
}
