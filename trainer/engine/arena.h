// arena.h: one allocation for a group of tensors, whose size is known before anything is allocated.
//   Arena arena("activations");
//   arena.reserve(qkv, N * 3 * C);    // allocate() will set the pointer qkv
//   arena.bytes();                    // what allocate() will take
//   arena.allocate();
//   In checked builds a gap that AddressSanitizer detects follows each tensor, and fresh memory is NaN.
#pragma once
#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/simt/device.h"

class Arena {
public:
    explicit Arena(std::string name) : name_(std::move(name)) {}
    // The pointer variables given to reserve() must not move before allocate().
    Arena(const Arena&) = delete;
    ~Arena();

    template <class T>
    void reserve(T*& pointer, size_t count) {
        const size_t offset = reserve_bytes(count * sizeof(T));
        assign_.push_back(
            [&pointer, offset](std::byte* memory) { pointer = reinterpret_cast<T*>(memory + offset); });
    }
    // Allocates the memory and sets the pointers; call once. Error if the machine does not have this
    // much.
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

// Name and bytes of each allocation that a model will make.
using MemoryPlan = std::vector<std::pair<std::string, size_t>>;
size_t total_bytes(const MemoryPlan& plan);

// All device memory of a model. An arena without bytes is neither planned nor allocated.
struct Memory {
    Arena parameters{"parameters"}, masters{"master weights (fp32)"}, gradients{"gradients (fp32)"},
        optimizer{"optimizer state (fp32)"}, cache{"keys and values"}, activations{"activations"},
        workspace{"workspace"};

    // Pointers to all of them, in the order of the memory plan.
    static auto all(auto& m) {
        return std::array{&m.parameters, &m.masters,     &m.gradients, &m.optimizer,
                          &m.cache,      &m.activations, &m.workspace};
    }
    MemoryPlan plan() const;
    void allocate();
};
