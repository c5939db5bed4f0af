// gpu_monitor.h: reads power, temperature and clock of the GPU with NVML, which comes with the driver.
// https://docs.nvidia.com/deploy/nvml-api
//   The library is loaded at run time. Without it, or without a GPU that it supports, there are no
//   readings and no errors. A separate thread reads once a second, because some NVML calls take
//   milliseconds.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <thread>

// NVML's values at one time; a value that it does not provide is std::nullopt.
struct GpuReading {
    std::optional<double> power_w, temperature_c, sm_clock_mhz;
    // what limits the clock: "none", or reasons such as "power cap, thermal"
    std::optional<std::string> throttle;
};

class GpuMonitor {
public:
    // Watches the GPU at this PCI address (simt::DeviceInfo); none if the address is empty. seconds:
    // between readings.
    explicit GpuMonitor(const std::string& pci_bus_id, const std::string& library = "libnvidia-ml.so.1",
                        double seconds = 1);
    ~GpuMonitor();
    GpuMonitor(const GpuMonitor&) = delete;

    // Returns the newest reading once, then std::nullopt until there is a newer one. Never waits.
    std::optional<GpuReading> take();

private:
    struct Nvml;
    void watch(double seconds);

    std::unique_ptr<Nvml> nvml_;  // nullptr: nothing is watched
    std::mutex mutex_;
    std::condition_variable stop_condition_;
    bool stop_ = false;
    std::optional<GpuReading> newest_;
    std::thread thread_;
};

// The fields of a train line in metrics.jsonl: power_w, temperature_c, sm_clock_mhz, throttle.
nlohmann::ordered_json to_json(const GpuReading& reading);
