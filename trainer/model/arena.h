// arena.h: one allocation for a group of tensors, sized before anything is allocated.
//   Arena arena("activations");
//   arena.reserve(qkv, N * 3 * C);    // qkv is a pointer that allocate() will set
//   arena.bytes();                    // what it will take
//   arena.allocate();
// In checked builds a gap that AddressSanitizer sees lies behind every tensor, and fresh memory is NaN.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "kernels/simt/device.h"

class Arena {
public:
    explicit Arena(std::string name) : name_(std::move(name)) {}
    // The pointers given to reserve() must stay where they are until allocate().
    Arena(const Arena&) = delete;
    ~Arena();

    template <class T>
    void reserve(T*& pointer, size_t count) {
        const size_t offset = reserve_bytes(count * sizeof(T));
        assign_.push_back(
            [&pointer, offset](std::byte* memory) { pointer = reinterpret_cast<T*>(memory + offset); });
    }
    // Once. Throws Error if the machine has not that much.
    void allocate();

    const std::string& name() const { return name_; }
    size_t bytes() const { return bytes_; }

private:
    struct Gap {
        size_t offset, bytes;
    };
    size_t reserve_bytes(size_t bytes);

    std::string name_;
    size_t bytes_ = 0;
    std::vector<std::function<void(std::byte*)>> assign_;
    std::vector<Gap> gaps_;
    simt::DeviceBuffer<std::byte> memory_;
};
