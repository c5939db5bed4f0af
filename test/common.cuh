// common.cuh: shared by the tests: seeded inputs, poisoned outputs, errors against an oracle, PyTorch's dumps
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "bounded.h"
#include "kernels/simt/bfloat16.h"
#include "kernels/simt/device.h"
#include "plain_gpt2.h"
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

inline std::vector<int> random_tokens(int count, int V, unsigned seed) {
    std::mt19937 generator(seed);
    std::vector<int> tokens(static_cast<size_t>(count));
    for (int& token : tokens) token = static_cast<int>(generator() % static_cast<unsigned>(V));
    return tokens;
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

// The elements in their own type.
template <class T>
std::vector<T> download_raw(const simt::DeviceBuffer<T>& buffer) {
    std::vector<T> raw(buffer.size());
    simt::copy_to_host(raw.data(), buffer.data(), buffer.bytes(), nullptr);
    simt::stream_synchronize(nullptr);
    return raw;
}
template <class T>
std::vector<float> download(const simt::DeviceBuffer<T>& buffer) {
    const std::vector<T> raw = download_raw(buffer);
    std::vector<float> values(raw.size());
    for (size_t i = 0; i < raw.size(); i++) values[i] = static_cast<float>(raw[i]);
    return values;
}

// |actual - expected| / |expected|; a NaN anywhere makes it a NaN, which no EXPECT_LE accepts.
template <class Actual, class Expected>
double relative_error(const std::vector<Actual>& actual, const std::vector<Expected>& expected) {
    EXPECT_EQ(actual.size(), expected.size());
    double difference = 0, norm = 0;
    for (size_t i = 0; i < actual.size(); i++) {
        const double d = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
        difference += d * d;
        norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    }
    return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

// Rounding unit of the type that a kernel stores.
template <class T>
constexpr double epsilon = 0x1p-24;
template <>
inline constexpr double epsilon<bfloat16> = 0x1p-8;

// Every element may be off by bound(expected element).
template <class Bound>
void expect_within(const std::vector<float>& actual, const std::vector<Bounded>& expected, Bound bound) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); i++) {
        ASSERT_LE(std::abs(static_cast<double>(actual[i]) - expected[i].value), bound(expected[i]) + 1e-37)
            << "element " << i << " of " << actual.size() << " is " << actual[i] << ", expected "
            << expected[i].value;
    }
}

// The bound of a result that is rounded several times: `factor` units of eps of its magnitude.
inline void expect_elements(const std::vector<float>& actual, const std::vector<Bounded>& expected,
                            double eps, double factor = 8) {
    expect_within(actual, expected, [&](Bounded e) { return factor * eps * e.size(); });
}

// The bound of a kernel that computes in fp32 and rounds its result to T once.
template <class T>
void expect_each_close(const std::vector<float>& actual, const std::vector<Bounded>& expected) {
    constexpr double rounding = std::is_same_v<T, float> ? 0 : 1.01 * epsilon<T>;
    expect_within(actual, expected,
                  [](Bounded e) { return 8 * epsilon<float> * e.size() + rounding * std::abs(e.value); });
}
// The error of the whole tensor may be 1e-5 (bf16: 1e-2) of its norm.
template <class T>
void expect_close(const std::vector<float>& actual, const std::vector<Bounded>& expected) {
    expect_each_close<T>(actual, expected);
    EXPECT_LE(relative_error(actual, expected), (std::is_same_v<T, float> ? 1e-5 : 1e-2));
}
template <class T>
void expect_close(const simt::DeviceBuffer<T>& actual, const std::vector<Bounded>& expected) {
    expect_close<T>(download(actual), expected);
}

// test/reference/NAME.safetensors: numbers PyTorch computed (dev/reference.py).
inline SafetensorsFile reference(const std::string& name) {
    return SafetensorsFile(relocated(PROJECT_ROOT "/test/reference/" + name + ".safetensors"));
}
