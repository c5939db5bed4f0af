// gpu_monitor.h: power, temperature and clock of the GPU, by NVML (https://docs.nvidia.com/deploy/nvml-api),
// which comes with the driver.
//   The library is loaded at run time; without it, or without a GPU that it knows, there is nothing to read,
//   and nothing fails. A thread of its own
//   asks once a second: some of NVML's calls take milliseconds.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

// What NVML says at a time; what it does not know is left out.
struct GpuReading {
    std::optional<double> power_w, temperature_c, sm_clock_mhz;
    // why the clock is not higher: "none", or reasons such as "power cap, thermal"
    std::optional<std::string> throttle;
};

class GpuMonitor {
public:
    // The GPU at this PCI address (simt::DeviceInfo). An empty one: none is watched.
    explicit GpuMonitor(const std::string& pci_bus_id, const std::string& library = "libnvidia-ml.so.1",
                        double seconds = 1);
    ~GpuMonitor();
    GpuMonitor(const GpuMonitor&) = delete;

    // The newest reading, once: std::nullopt until there is another one. Waits for nothing.
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

// As a train line of metrics.jsonl has it: power_w, temperature_c, sm_clock_mhz, throttle.
nlohmann::ordered_json to_json(const GpuReading& reading);
