// An imitation of NVML that has one GPU, counts the calls, and fails on request. Like a driver before 535,
// it has the older name for throttle reasons.
#include <atomic>
#include <cstring>

namespace {
std::atomic<int> started, stopped, readings, error;  // error: what every call returns instead
int gpu;
}  // namespace

extern "C" {
void imitation_fail(int with) { error = with; }
int imitation_running() { return started - stopped; }
int imitation_starts() { return started; }
int imitation_reads() { return readings; }

int nvmlInit_v2() {
    if (error) return error;
    started++;
    return 0;
}
int nvmlShutdown() {
    stopped++;
    return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
    if (std::strcmp(address, "0000:3B:00.0") != 0) return 6;  // NVML_ERROR_NOT_FOUND
    *device = &gpu;
    return 0;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
    if (error) return error;
    if (device != &gpu) return 2;  // NVML_ERROR_INVALID_ARGUMENT
    readings++;
    *milliwatts = 312'500;
    return 0;
}
int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* celsius) {
    if (error) return error;
    if (device != &gpu || sensor != 0) return 2;
    *celsius = 61;
    return 0;
}
int nvmlDeviceGetClockInfo(void*, int, unsigned*) { return 3; }  // NVML_ERROR_NOT_SUPPORTED
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
    if (error) return error;
    if (device != &gpu) return 2;
    *reasons = 0x1 | 0x4 | 0x40;  // idle, which is no throttling; power cap; hardware thermal slowdown
    return 0;
}
}
