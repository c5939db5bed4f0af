// step_graphs.h: the parts of a training step, or of generating a token, as CUDA graphs. A part launches the
// same kernels with the same arguments in every step. What changes from step to step (tokens, learning rate,
// step count) is copied to a fixed place in device memory beforehand, outside the graph.
//   Without graphs a step launches a kernel every few microseconds, and a GPU that is faster than that
//   waits for the host. A graph is one launch.
#pragma once
#include <fmt/format.h>

#include <vector>

#include "kernels/simt/device.h"
#include "system/error.h"
#include "system/print_line.h"

class Graphs {
public:
    // Without graphs (wanted = false, or on the CPU) the kernels are launched one by one.
    Graphs(size_t parts, bool wanted) : active_(wanted && simt::is_gpu()), parts_(parts) {}
    ~Graphs() { discard(); }
    Graphs(const Graphs&) = delete;

    // Runs a part; work() queues its kernels on the stream. The first time they are launched one by one,
    // while libraries choose algorithms and allocate. The second time they are captured, and from then on
    // replayed. If capture fails, a line says why, and all parts run without graphs.
    template <class Work>
    void run(size_t part, stream_t stream, const Work& work) {
        Part& p = parts_[part];
        if (active_ && p.met && !p.graph) capture(p, stream, work);
        p.met = true;
        if (active_ && p.graph) simt::graph_launch(p.graph, stream);
        else work();
    }

    // Call when a part's arguments have changed: its graph will be captured again.
    void discard(size_t part) {
        if (parts_[part].graph) simt::graph_destroy(parts_[part].graph);
        parts_[part].graph = nullptr;
    }
    // Discards all graphs. Call before the memory that they use is freed.
    void discard() {
        for (size_t part = 0; part < parts_.size(); part++) discard(part);
    }

private:
    struct Part {
        bool met = false;
        graph_t graph = nullptr;
    };

    template <class Work>
    void capture(Part& part, stream_t stream, const Work& work) {
        try {
            part.graph = simt::capture(stream, work);
        } catch (const Error& error) {
            active_ = false;
            print_line(stderr, fmt::format("without CUDA graphs: {}", error.what()));
        }
    }

    bool active_;
    std::vector<Part> parts_;
};

class StepGraphs : public Graphs {
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
    explicit StepGraphs(bool wanted) : Graphs(parts, wanted) {}
};
