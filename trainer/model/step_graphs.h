// step_graphs.h: the parts of a training step as CUDA graphs. A part gives the GPU the same kernels with the
//   same arguments every time: what changes from step to step (tokens, learning rate, count of steps) is
//   copied to its place in device memory before, outside of the graph.
//   By itself a step launches a kernel every few microseconds, and a GPU that is faster than that waits for
//   the host; a graph is one launch.
#pragma once
#include <fmt/format.h>

#include "kernels/simt/device.h"
#include "system/error.h"
#include "system/print_line.h"

class StepGraphs {
public:
    // A step's first micro-step overwrites what the others add to, so each has graphs of its own.
    enum Part {
        forward_first,
        forward_other,
        backward_first,
        backward_other,
        gradient_norm,
        parameter_update,
        parts
    };

    // wanted: false, and on the CPU, everything runs by itself.
    explicit StepGraphs(bool wanted) : active_(wanted && simt::is_gpu()) {}
    ~StepGraphs() { discard(); }
    StepGraphs(const StepGraphs&) = delete;

    // Runs a part, which is what work() gives to the stream: by itself the first time, while libraries choose
    // how they compute, and allocate; captured the second time; replayed from then on. If it cannot be
    // captured, a line says why, and all parts run by themselves.
    template <class Work>
    void run(Part part, stream_t stream, const Work& work) {
        if (active_ && met_[part] && !graphs_[part]) capture(part, stream, work);
        met_[part] = true;
        if (active_ && graphs_[part]) simt::graph_launch(graphs_[part], stream);
        else work();
    }

    // The arguments of a part have changed: its graph is made again.
    void discard(Part part) {
        if (graphs_[part]) simt::graph_destroy(graphs_[part]);
        graphs_[part] = nullptr;
    }
    // All of them, before what they compute with is freed.
    void discard() {
        for (int part = 0; part < parts; part++) discard(static_cast<Part>(part));
    }

private:
    template <class Work>
    void capture(Part part, stream_t stream, const Work& work) {
        try {
            graphs_[part] = simt::capture(stream, work);
        } catch (const Error& error) {
            active_ = false;
            print_line(stderr, fmt::format("without CUDA graphs: {}", error.what()));
        }
    }

    bool active_;
    bool met_[parts] = {};
    graph_t graphs_[parts] = {};
};
