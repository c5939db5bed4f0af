// ready_threads.h: the order in which the CPU runs the threads of a block and the blocks of a grid.
//   A kernel's result must not depend on it, so tests run every kernel in ascending, descending and shuffled
//   order.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/simt/cpu.h"
#include "kernels/simt/target.h"

namespace simt::cpu {

struct OrderSetting {
    Order order = Order::ascending;
    uint64_t seed = 0;
};
// The order that set_order has set; at the start, the one in the environment (cpu_checks.cpp).
OrderSetting& order_setting();

// SplitMix64 (Steele, Lea and Flood 2014). Its state is one word, so that every block can have its own
// generator.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t below(uint64_t n) { return next() % n; }
    int bit_of(uint32_t mask) {  // the position of one of the mask's set bits
        for (uint64_t skip = below(static_cast<uint64_t>(std::popcount(mask))); skip > 0; skip--)
            mask &= mask - 1;
        return std::countr_zero(mask);
    }

private:
    uint64_t next() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    uint64_t state_;
};

// The threads of a block that can run, and which of them is next.
class ReadyThreads {
public:
    // Makes all threads of a block ready: whole warps or a single thread.
    void start(uint32_t threads, OrderSetting setting, uint64_t block) {
        order_ = setting.order;
        if (order_ == Order::shuffled) random_ = Random(setting.seed ^ (block << 32));
        turn_ = 0;
        warps_ = 0;
        add(0, threads);
    }
    bool empty() const { return warps_ == 0; }
    bool contains(uint32_t thread) const { return lanes_[thread / warp_size] >> (thread % warp_size) & 1; }
    void add(uint32_t first, uint32_t threads) {
        const uint32_t warps = ceil_div<uint32_t>(threads, warp_size);
        warps_ |= first_bits(warps) << (first / warp_size);
        std::fill_n(lanes_.begin() + first / warp_size, warps,
                    first_bits(std::min<uint32_t>(threads, warp_size)));
    }
    // In ascending and descending order a warp runs ahead of the others as far as barriers allow. Shuffled
    // order mixes the lanes of a warp and changes the warp after a random number of threads, 1 to 64, because
    // a race may show only if one warp is far ahead, or only if two are mixed thread by thread.
    uint32_t take() {
        int lane;
        if (order_ == Order::ascending) {
            warp_ = std::countr_zero(warps_);
            lane = std::countr_zero(lanes_[warp_]);
        } else if (order_ == Order::descending) {
            warp_ = 31 - std::countl_zero(warps_);
            lane = 31 - std::countl_zero(lanes_[warp_]);
        } else {
            if (turn_ == 0 || !(warps_ >> warp_ & 1)) {
                warp_ = random_.bit_of(warps_);
                turn_ = uint64_t{1} << random_.below(7);
            }
            turn_--;
            lane = random_.bit_of(lanes_[warp_]);
        }
        lanes_[warp_] &= ~(1u << lane);
        if (lanes_[warp_] == 0) warps_ &= ~(1u << warp_);
        return static_cast<uint32_t>(warp_ * warp_size + lane);
    }

private:
    static uint32_t first_bits(uint32_t count) { return static_cast<uint32_t>((uint64_t{1} << count) - 1); }

    uint32_t warps_ = 0;  // bit mask of the warps with a thread that can run
    std::array<uint32_t, max_block / warp_size> lanes_{};
    Order order_ = Order::ascending;
    Random random_{0};
    int warp_ = 0;       // the warp whose turn it is
    uint64_t turn_ = 0;  // threads left in its turn
};

// The numbers of a grid's blocks, in the order in which they begin.
class BlockOrder {
public:
    BlockOrder(OrderSetting setting, size_t blocks)
        : order_(setting.order), blocks_(blocks), shuffled_(order_ == Order::shuffled ? blocks : 0) {
        std::iota(shuffled_.begin(), shuffled_.end(), 0u);
        Random random(setting.seed);
        for (size_t i = 1; i < shuffled_.size(); i++) std::swap(shuffled_[i], shuffled_[random.below(i + 1)]);
    }
    size_t operator[](size_t i) const {
        if (order_ == Order::ascending) return i;
        return order_ == Order::descending ? blocks_ - 1 - i : shuffled_[i];
    }

private:
    Order order_;
    size_t blocks_;
    std::vector<uint32_t> shuffled_;
};

}  // namespace simt::cpu
