// bounded.h: a number of an oracle, with a bound of the rounding error that a kernel's result may have
//   A kernel's result may differ from `value` by a few eps times `magnitude`, where eps is the rounding unit
//   of the kernel's numbers. A sum's magnitude is the sum of its terms' magnitudes, in whatever order they
//   are added; other operations pass on their operands' errors to first order, and add one rounding of their
//   own. Inputs are exact: their magnitude is 0. plain_gpt2.h computes with it as with a double.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

struct Bounded {
    double value = 0, magnitude = 0;

    Bounded() = default;
    Bounded(double exact) : value(exact) {}
    Bounded(double value, double magnitude) : value(value), magnitude(magnitude) {}
    explicit operator double() const { return value; }

    double size() const { return std::max(magnitude, std::abs(value)); }
    // By how much the relative error exceeds one rounding.
    double excess() const { return value == 0 ? 0 : size() / std::abs(value) - 1; }

    Bounded operator-() const { return {-value, magnitude}; }
    friend bool operator<(Bounded a, Bounded b) { return a.value < b.value; }
    friend Bounded operator+(Bounded a, Bounded b) {
        const double sum = a.value + b.value;
        return {sum, a.magnitude == 0 && b.magnitude == 0 ? std::abs(sum) : a.size() + b.size()};
    }
    friend Bounded operator-(Bounded a, Bounded b) { return a + -b; }
    friend Bounded operator*(Bounded a, Bounded b) {
        const double product = std::abs(a.value * b.value);
        return {a.value * b.value, a.size() * std::abs(b.value) + b.size() * std::abs(a.value) - product};
    }
    friend Bounded operator/(Bounded a, Bounded b) {
        const double quotient = a.value / b.value;
        return {quotient, a.size() / std::abs(b.value) + std::abs(quotient) * b.excess()};
    }
    // A term is added to a sum. A kernel may add the terms in another order, in which none cancel early.
    Bounded& operator+=(Bounded term) { return *this = {value + term.value, size() + term.size()}; }
};

inline Bounded exp(Bounded x) { return {std::exp(x.value), std::exp(x.value) * (1 + x.size())}; }
inline Bounded log(Bounded x) {
    return {std::log(x.value), std::abs(std::log(x.value)) + x.size() / std::abs(x.value)};
}
// Close to 0 and to 1 a kernel may round as of 1.
inline Bounded tanh(Bounded x) { return {std::tanh(x.value), 1 + x.size()}; }
inline Bounded sqrt(Bounded x) {
    const double root = std::sqrt(x.value);
    return {root, root * (1 + x.excess() / 2)};
}

inline std::vector<Bounded> exact(const std::vector<float>& values) { return {values.begin(), values.end()}; }
inline std::vector<float> rounded(const std::vector<Bounded>& values) {
    std::vector<float> all;
    for (const Bounded& x : values) all.push_back(static_cast<float>(x.value));
    return all;
}
