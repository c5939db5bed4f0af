// A GPU's power and temperature, read from an imitation of NVML (test/nvml/imitation.cpp), which is loaded
// like the driver's library.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "trainer/run/gpu_monitor.h"

namespace {

// The imitation's own counters. Holding it open keeps them while monitors come and go.
class Imitation {
public:
    Imitation() : handle_(dlopen(NVML_IMITATION, RTLD_NOW)) {}
    ~Imitation() {
        if (handle_) dlclose(handle_);
    }
    bool loaded() const { return handle_ != nullptr; }
    void fail(int with) const { reinterpret_cast<void (*)(int)>(dlsym(handle_, "imitation_fail"))(with); }
    int count(const char* name) const { return reinterpret_cast<int (*)()>(dlsym(handle_, name))(); }

private:
    void* handle_;
};

std::optional<GpuReading> wait_for_reading(GpuMonitor& monitor) {
    for (int i = 0; i < 1000; i++) {
        if (auto reading = monitor.take()) return reading;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return std::nullopt;
}

TEST(GpuMonitor, ReadsWhatTheDriverKnows) {
    const Imitation nvml;
    ASSERT_TRUE(nvml.loaded()) << dlerror();
    {
        GpuMonitor monitor("0000:3B:00.0", NVML_IMITATION, 1000);
        const auto reading = wait_for_reading(monitor);
        ASSERT_TRUE(reading);
        EXPECT_EQ(reading->power_w, 312.5);
        EXPECT_EQ(reading->temperature_c, 61);
        EXPECT_FALSE(reading->sm_clock_mhz);  // not supported by this GPU
        EXPECT_EQ(reading->throttle, "power cap, hardware thermal");
        EXPECT_EQ(to_json(*reading).dump(),
                  R"({"power_w":312.5,"temperature_c":61.0,"throttle":"power cap, hardware thermal"})");
        EXPECT_EQ(nvml.count("imitation_running"), 1);
        // Each reading is returned once. The next would come only after 1000 seconds, and the end does not
        // wait for it.
        EXPECT_FALSE(monitor.take());
        EXPECT_EQ(nvml.count("imitation_reads"), 1);
    }
    EXPECT_EQ(nvml.count("imitation_running"), 0);
}

TEST(GpuMonitor, AsksNoMoreOftenThanItShould) {
    const Imitation nvml;
    ASSERT_TRUE(nvml.loaded()) << dlerror();
    const int before = nvml.count("imitation_reads");
    const auto start = std::chrono::steady_clock::now();
    {
        GpuMonitor monitor("0000:3B:00.0", NVML_IMITATION, 0.05);
        for (int i = 0; i < 4; i++) EXPECT_TRUE(wait_for_reading(monitor)) << i;
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    EXPECT_GE(elapsed.count(), 3 * 0.05);
    EXPECT_LE(nvml.count("imitation_reads") - before, 1 + elapsed.count() / 0.05);
}

TEST(GpuMonitor, ADriverThatFailsIsNoError) {
    const Imitation nvml;
    ASSERT_TRUE(nvml.loaded()) << dlerror();
    {
        GpuMonitor monitor("0000:3B:00.0", NVML_IMITATION, 0.01);
        ASSERT_TRUE(wait_for_reading(monitor));
        nvml.fail(15);                           // NVML_ERROR_GPU_IS_LOST
        ASSERT_TRUE(wait_for_reading(monitor));  // a reading may have begun before
        const auto lost = wait_for_reading(monitor);
        ASSERT_TRUE(lost);
        EXPECT_EQ(to_json(*lost).dump(), "{}");
        GpuMonitor refused("0000:3B:00.0", NVML_IMITATION, 0.01);  // nvmlInit fails
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        EXPECT_FALSE(refused.take());
        nvml.fail(0);
    }
    EXPECT_EQ(nvml.count("imitation_running"), 0);
}

TEST(GpuMonitor, WithoutLibraryOrGpuThereIsNothingToRead) {
    const Imitation nvml;
    ASSERT_TRUE(nvml.loaded()) << dlerror();
    const int starts = nvml.count("imitation_starts");
    GpuMonitor none(""), no_library("0000:3B:00.0", "libno-such-nvml.so.1"),
        no_functions("0000:3B:00.0", "libm.so.6"), other_gpu("0000:AF:00.0", NVML_IMITATION),
        on_the_cpu("", NVML_IMITATION);
    for (GpuMonitor* monitor : {&none, &no_library, &no_functions, &other_gpu, &on_the_cpu})
        EXPECT_FALSE(monitor->take());
    EXPECT_EQ(nvml.count("imitation_starts"), starts + 1);  // to query the other GPU
    EXPECT_EQ(nvml.count("imitation_running"), 0);
    EXPECT_EQ(to_json(GpuReading()).dump(), "{}");
}

}  // namespace
