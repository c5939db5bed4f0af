#include "trainer/run/gpu_monitor.h"

#include <dlfcn.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

namespace {

// Bits of NVML's clock event reasons ("throttle reasons" before driver 535). Bits that do not mean
// throttling, such as an idle GPU, are left out.
constexpr std::pair<unsigned long long, const char*> throttle_reasons[] = {
    {0x2, "application clocks"}, {0x4, "power cap"},        {0x8, "hardware slowdown"},
    {0x10, "sync boost"},        {0x20, "thermal"},         {0x40, "hardware thermal"},
    {0x80, "power brake"},       {0x100, "display clocks"},
};

std::string throttle_text(unsigned long long bits) {
    std::string text;
    for (const auto& [bit, name] : throttle_reasons) {
        if (bits & bit) text += (text.empty() ? "" : ", ") + std::string(name);
    }
    return text.empty() ? "none" : text;
}

}  // namespace

struct GpuMonitor::Nvml {
    // Declared here as in nvml.h, because not every installation of the CUDA toolkit has that header.
    using Device = struct nvmlDevice_st*;
    static constexpr int success = 0, sensor_of_gpu = 0, clock_of_sm = 1;

    void* library;  // nullptr: there is none
    int (*init)() = nullptr;
    int (*shutdown)() = nullptr;
    int (*handle_by_address)(const char*, Device*) = nullptr;
    int (*power)(Device, unsigned*) = nullptr;
    int (*temperature)(Device, int, unsigned*) = nullptr;
    int (*clock)(Device, int, unsigned*) = nullptr;
    int (*clock_reasons)(Device, unsigned long long*) = nullptr;
    Device device = nullptr;
    bool started = false;

    Nvml(const std::string& name, const std::string& pci_bus_id)
        : library(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        find(init, "nvmlInit_v2");
        find(shutdown, "nvmlShutdown");
        find(handle_by_address, "nvmlDeviceGetHandleByPciBusId_v2");
        find(power, "nvmlDeviceGetPowerUsage");
        find(temperature, "nvmlDeviceGetTemperature");
        find(clock, "nvmlDeviceGetClockInfo");
        find(clock_reasons, "nvmlDeviceGetCurrentClocksEventReasons");
        // the function's name before driver 535
        if (!clock_reasons) find(clock_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
        started = init && shutdown && handle_by_address && init() == success;
        if (started && handle_by_address(pci_bus_id.c_str(), &device) != success) device = nullptr;
    }
    Nvml(const Nvml&) = delete;
    ~Nvml() {
        if (started) shutdown();
        if (library) dlclose(library);
    }

    // Leaves the function at nullptr if the library lacks it.
    template <class Function>
    void find(Function*& function, const char* name) const {
        if (library) function = reinterpret_cast<Function*>(dlsym(library, name));
    }

    GpuReading read() const {
        GpuReading reading;
        unsigned value = 0;
        unsigned long long bits = 0;
        if (power && power(device, &value) == success) reading.power_w = value / 1000.0;
        if (temperature && temperature(device, sensor_of_gpu, &value) == success)
            reading.temperature_c = value;
        if (clock && clock(device, clock_of_sm, &value) == success) reading.sm_clock_mhz = value;
        if (clock_reasons && clock_reasons(device, &bits) == success) reading.throttle = throttle_text(bits);
        return reading;
    }
};

GpuMonitor::GpuMonitor(const std::string& pci_bus_id, const std::string& library, double seconds) {
    if (pci_bus_id.empty()) return;
    auto nvml = std::make_unique<Nvml>(library, pci_bus_id);
    if (!nvml->device) return;
    nvml_ = std::move(nvml);
    thread_ = std::thread([this, seconds] { watch(seconds); });
}

GpuMonitor::~GpuMonitor() {
    if (!thread_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    stop_condition_.notify_one();
    thread_.join();
}

void GpuMonitor::watch(double seconds) {
    std::unique_lock lock(mutex_);
    while (!stop_) {
        lock.unlock();
        const GpuReading reading = nvml_->read();
        lock.lock();
        newest_ = reading;
        stop_condition_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return stop_; });
    }
}

std::optional<GpuReading> GpuMonitor::take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(newest_, std::nullopt);
}

nlohmann::ordered_json to_json(const GpuReading& reading) {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    const auto add = [&](const char* key, const auto& value) {
        if (value) json[key] = *value;
    };
    add("power_w", reading.power_w);
    add("temperature_c", reading.temperature_c);
    add("sm_clock_mhz", reading.sm_clock_mhz);
    add("throttle", reading.throttle);
    return json;
}
