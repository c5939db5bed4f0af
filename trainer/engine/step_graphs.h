// step_graphs.h: the parts of a training step as CUDA graphs. A part launches the same kernels with the
// same arguments in every step. What changes from step to step (tokens, learning rate, step count) is
// copied to a fixed place in device memory beforehand, outside the graph.
//   Without graphs a step launches a kernel every few microseconds, and a GPU that is faster than that
//   waits for the host. A graph is one launch.
#pragma once
#include <fmt/format.h>

#include "kernels/simt/device.h"
#include "system/error.h"
#include "system/print_line.h"

class StepGraphs {
public:
    // A step's first micro-step overwrites gradients that later ones add to, so each kind has its own
    // graphs.
    enum Part {
        forward_first,
        forward_other,
        backward_first,
        backward_other,
        gradient_norm,
        parameter_update,
        parts
    };

    // Without graphs (wanted = false, or on the CPU) the kernels are launched one by one.
    explicit StepGraphs(bool wanted) : active_(wanted && simt::is_gpu()) {}
    ~StepGraphs() { discard(); }
    StepGraphs(const StepGraphs&) = delete;

    // Runs a part; work() queues its kernels on the stream. The first time they are launched one by one,
    // while libraries choose algorithms and allocate. The second time they are captured, and from then on
    // replayed. If capture fails, a line says why, and all parts run without graphs.
    template <class Work>
    void run(Part part, stream_t stream, const Work& work) {
        if (active_ && met_[part] && !graphs_[part]) capture(part, stream, work);
        met_[part] = true;
        if (active_ && graphs_[part]) simt::graph_launch(graphs_[part], stream);
        else work();
    }

    // Call when a part's arguments have changed: its graph will be captured again.
    void discard(Part part) {
        if (graphs_[part]) simt::graph_destroy(graphs_[part]);
        graphs_[part] = nullptr;
    }
    // Discards all graphs. Call before the memory that they use is freed.
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
