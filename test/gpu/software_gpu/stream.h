// stream.h: access to the software GPU's streams, memory and settings for the replaced libraries
#pragma once
#include <cuda_runtime_api.h>

#include <exception>
#include <functional>
#include <string>

#include "software_gpu.h"

namespace software_gpu {

// The settings in the environment variable SOFTWARE_GPU, as Settings::parse reads them. Parsed once; an
// unknown setting ends the process with 86.
const Settings& settings();

// The device's only memory. Work in a stream may use it freely; a thread of the host may only look up
// addresses.
Memory& device_memory();

// Queues work in the stream. A thread of the device runs it when the host waits, or at a time that the
// seed chooses. While the stream captures, the work is recorded instead and runs at every launch of the
// graph, so it must be repeatable and must own its inputs. A Fault that it throws ends the process as
// stop() does. `name` is used in messages. While work waits for other processes, the device never delays
// the host in order to run ahead, because they may wait for this host.
enum class WaitsFor { nobody, other_processes };
void enqueue(cudaStream_t stream, std::function<void()> work, std::string name,
             WaitsFor waits_for = WaitsFor::nobody);

// True while the stream captures.
bool is_capturing(cudaStream_t stream);

// Prints "software GPU: ..." and ends the process with 86: the end of every finding.
[[noreturn]] void stop(const std::exception& fault);

}  // namespace software_gpu
