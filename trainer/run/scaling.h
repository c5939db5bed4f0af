// scaling.h: how the time of a step divides into computing and communicating, on machines one does not have:
// the alpha-beta model of rings and trees.
//   A ring passes every part of the data on from process to process: its time is the latency (alpha) of all
//   steps and the bytes each process sends over the bandwidth (beta) of the slowest link. For all_reduce the
//   faster of ring and tree counts, as NCCL chooses.
//   It knows no stragglers, no congestion and no cost of computing and communicating at once:
//   docs/distributed.md says where it holds.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "trainer/distributed/communicator.h"
#include "trainer/model/dtype.h"
#include "trainer/model/gpt2_config.h"

// In each direction. latency: seconds that a step of a ring takes besides its bytes.
struct Link {
    double bytes_per_second, latency;
};

// "nvlink3", "hdr8", ..., or GB/s and microseconds: "235,3.4". UsageError, naming the option, for anything
// else.
Link parse_link(const std::string& option, const std::string& text);
std::string known_links();

struct Machines {
    int per_machine = 8;  // processes
    // from one process to the next; from one machine to the next, over all its network cards
    Link within{}, between{};
};

// Seconds for an operation on `bytes` (in all parts together).
double collective_seconds(Collective::Kind kind, size_t bytes, int processes, const Machines& machines);

// What was measured of an operation.
struct CommunicationSample {
    Collective::Kind kind;
    size_t bytes;
    double seconds;
};

// The link by which rings explain the samples of so many processes best: the least sum of squared relative
// errors.
Link fit_link(const std::vector<CommunicationSample>& samples, int processes);

// A training step as its total batch defines it, however many processes share it.
struct StepShape {
    GPT2Config config;
    int seq_len = 0, most_sequences = 0;  // most_sequences: that fit into a micro-step
    size_t total_batch = 0;               // tokens
    bool recompute_block = false;
    int zero = 0;
    // as they are communicated
    Collective::Element gradients = Collective::fp32, parameters = Collective::fp32;
    // of a process that does not communicate
    double tokens_per_second = 0;
};

struct StepEstimate {
    int sequences = 0, micro_steps = 0;              // of a process
    size_t gradient_bytes = 0, parameter_bytes = 0;  // that a process sends, and receives as many
    double compute = 0, communication = 0;           // seconds
    double exposed = 0;                              // of the communication, what no computation hides
    double seconds() const { return compute + exposed; }
    double lost() const { return exposed / seconds(); }
    double lost_without_overlap() const { return communication / (compute + communication); }
};

// std::nullopt: the sequences of the step do not divide among so many processes.
std::optional<StepEstimate> estimate_step(const StepShape& step, int processes, const Machines& machines);
// Lines for a person: the model's assumptions, then a row for 1, 2, 4, .. and `processes` processes.
std::string scaling_table(const StepShape& step, int processes, const Machines& machines);
