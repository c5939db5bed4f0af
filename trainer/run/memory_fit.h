// memory_fit.h: checks whether a program's allocations fit into memory, and finds the largest micro-batch
// that does.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/simt/bfloat16.h"
#include "kernels/simt/device.h"
#include "system/error.h"
#include "system/note.h"
#include "system/printable.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/engine/model.h"
#include "trainer/models/families.h"
#include "trainer/run/options.h"
#include "trainer/run/replicas.h"

// UsageError, with the expectation, if the plan needs more than the device's free memory.
inline void check_fits(const MemoryPlan& plan, const std::string& what, const std::string& expected) {
    const size_t needed = total_bytes(plan), free = simt::device_info().free_memory;
    CHECK(needed <= free, "{} needs {}, but {} are free; expected {}", what, readable(needed), readable(free),
          expected);
}

// Bytes that each process may allocate: the smallest of all ranks' shares.
inline size_t memory_of_a_process(const Options& o, Communicator& communicator) {
    if (o.plan.device_memory) return *o.plan.device_memory;
    const size_t free = simt::device_info().free_memory;
    // On a GPU, kernel code and libraries will take up to 300 MiB of what is free now, and NCCL, when it
    // first sends gradients, up to 1.6 GiB (seen by others). Processes on CPUs share the machine's memory.
    const size_t others = (communicator.size() > 1 ? size_t{300 + 1640} : size_t{300}) << 20;
    const size_t mine = simt::is_gpu() ? free - std::min(free, others)
                                       : free / static_cast<size_t>(communicator.process().local_size);
    return smallest_over_processes(communicator, mine);
}

inline ModelOptions model_options(const Options& o) {
    return {.B = o.batch.size,
            .T = o.batch.seq_len,
            .total_batch = o.batch.total,
            // the first process prints the samples
            .generated_tokens = o.rank == 0 && o.evaluation.sample_every > 0
                                    ? std::min(o.batch.seq_len, o.evaluation.sample_tokens)
                                    : 0,
            .tf32 = o.system.dtype == DType::tf32,
            .recompute = o.system.recompute,
            .head_chunks = o.system.head_chunks,
            .attention = o.system.attention,
            .deterministic = o.system.deterministic,
            .graphs = !o.system.no_graph,
            .seed = o.system.seed,
            .optimizer = o.optimizer.kind,
            .momentum = o.optimizer.momentum > 0,
            .rank = o.rank,
            .world_size = o.world_size,
            .zero = o.system.zero == 1,
            .reduce_bf16 = o.system.reduce_dtype == DType::bf16};
}

// The run's allocations on the device that runs its kernels. With a GPU, present or planned for, the
// snapshot is in host memory.
template <class T>
MemoryPlan run_memory_plan(const Options& o, const Model<T>& model) {
    MemoryPlan plan = model.memory_plan();
    if (o.output.checkpoint_every > 0 && !simt::is_gpu() && !o.plan.device_memory) {
        plan.emplace_back("checkpoint snapshot (fp32)",
                          SnapshotShape::of(model).bytes(model.table(), model.optimizer_buffers().size()));
    }
    return plan;
}

template <class T>
size_t bytes_with_batch(const Options& o, int batch_size) {
    Options changed = o;
    changed.batch.size = batch_size;
    changed.rank = 0;  // rank 0 needs the most memory
    // A candidate batch may have fewer tokens than there are chunks.
    changed.system.head_chunks =
        static_cast<int>(std::min(int64_t{o.system.head_chunks}, int64_t{batch_size} * o.batch.seq_len));
    return total_bytes(run_memory_plan(o, Model<T>(make_family<T>(o.model.config), model_options(changed))));
}

// The largest micro-batch that divides the step and fits into memory; 0 if not even one sequence fits.
// Memory grows with the number of sequences, so a binary search finds it.
template <class T>
int largest_batch(const Options& o, size_t memory) {
    // sequences of a step in one process
    const int samples = static_cast<int>(o.batch.total / static_cast<size_t>(o.batch.seq_len)) / o.world_size;
    std::vector<int> candidates;
    for (int b = 1; b <= std::min({samples, max_batch_size, INT_MAX / o.batch.seq_len}); b++) {
        if (samples % b == 0) candidates.push_back(b);
    }
    const auto fits = [&](int b) { return bytes_with_batch<T>(o, b) <= memory; };
    const auto too_large = std::partition_point(candidates.begin(), candidates.end(), fits);
    return too_large == candidates.begin() ? 0 : *(too_large - 1);
}

// Prints the run's memory plan. UsageError, with options that would fit, if it needs more memory than
// there is.
template <class T>
void check_memory(const Options& o, const Model<T>& model, size_t memory, const Note& say) {
    const MemoryPlan plan = run_memory_plan(o, model);
    say(fmt::format("memory plan{}", o.world_size == 1 ? "" : " of a process"));
    for (const auto& [name, bytes] : plan) say(fmt::format("  {:<26} {:>11}", name, readable(bytes)));
    const size_t total = total_bytes(plan);
    say(fmt::format("  {:<26} {:>11} of {} {}", "total", readable(total), readable(memory),
                    o.plan.device_memory ? "planned for" : "free"));
    if (total <= memory) return;
    std::string advice = "a smaller model is needed";
    Options block = o;
    block.system.recompute = Recompute::block;
    if (const int b = largest_batch<T>(o, memory)) {
        advice = fmt::format("--batch-size {} would fit", b);
    } else if (const int with_recompute = largest_batch<T>(block, memory)) {
        advice = fmt::format("--batch-size {} --recompute block would fit", with_recompute);
    } else if (o.system.dtype != DType::bf16 && bytes_with_batch<bfloat16>(block, 1) <= memory) {
        advice = "--batch-size 1 --recompute block --dtype bf16 would fit";
    }
    throw UsageError(fmt::format("the run needs {}, but {} are {}; {}", readable(total), readable(memory),
                                 o.plan.device_memory ? "planned for" : "free", advice));
}
