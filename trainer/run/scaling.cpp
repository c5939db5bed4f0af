#include "trainer/run/scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <ranges>
#include <utility>
#include <vector>

#include "system/error.h"
#include "trainer/model/tensor_table.h"

namespace {

// Bandwidths: what nccl-tests measures as "busbw" of rings on such links (A100: at most 235 GB/s; H100: 370;
// InfiniBand: 95 % of the line).
// Latencies: what NCCL itself assumes for a step of a ring (its src/graph/tuning.cc, protocol Simple).
const std::map<std::string, Link>& links() {
    static const std::map<std::string, Link> links = {
        {"nvlink3", {235e9, 3.4e-6}},    // A100
        {"nvlink4", {370e9, 3.4e-6}},    // H100, H200
        {"pcie4", {20e9, 5.7e-6}},       // 16 lanes
        {"hdr1", {24e9, 9.6e-6}},        // one InfiniBand card of 200 Gb/s
        {"hdr8", {190e9, 9.6e-6}},       // eight of them
        {"ndr8", {370e9, 9.6e-6}},       // eight of 400 Gb/s
        {"ethernet10", {1.1e9, 30e-6}},  // 10 Gb/s, TCP
        {"ethernet100", {11e9, 30e-6}},  // 100 Gb/s, TCP
    };
    return links;
}

// A step of a tree waits for a chunk, not for a message: by NCCL's figures 28 us against 3.4 within a
// machine, 50 against 9.6 between them.
constexpr double tree_step_within = 8.2, tree_step_between = 5.2, tree_bandwidth = 0.9;

}  // namespace

std::string known_links() {
    std::string names;
    for (const auto& [name, link] : links()) names += (names.empty() ? "" : ", ") + name;
    return names;
}

Link parse_link(const std::string& option, const std::string& text) {
    if (const auto found = links().find(text); found != links().end()) return found->second;
    double gigabytes = 0, microseconds = 0;
    char rest = 0;
    const int numbers = std::sscanf(text.c_str(), "%lf,%lf%c", &gigabytes, &microseconds, &rest);
    CHECK(numbers == 2 && gigabytes > 0 && gigabytes < 1e6 && microseconds >= 0 && microseconds < 1e6,
          "{} {}; expected one of {}, or GB/s and microseconds such as 235,3.4", option, text, known_links());
    return {gigabytes * 1e9, microseconds * 1e-6};
}

double collective_seconds(Collective::Kind kind, size_t bytes, int processes, const Machines& machines) {
    if (processes <= 1) return 0;
    const int count = (processes + machines.per_machine - 1) / machines.per_machine,
              local = std::min(processes, machines.per_machine);
    double bandwidth = local > 1 ? machines.within.bytes_per_second : machines.between.bytes_per_second;
    if (count > 1) bandwidth = std::min(bandwidth, machines.between.bytes_per_second);
    // Once around the ring. A part crosses from machine to machine count - 1 times.
    const double latency =
        (processes - count) * machines.within.latency + (count - 1) * machines.between.latency;
    const double size = static_cast<double>(bytes),
                 pass = latency + size * (processes - 1) / processes / bandwidth;
    if (kind == Collective::broadcast) return latency + size / bandwidth;
    if (kind != Collective::all_reduce) return pass;
    int depth = 0;  // of a tree over the machines
    while (1 << depth < count) depth++;
    const double up = (local - 1) * tree_step_within * machines.within.latency +
                      depth * tree_step_between * machines.between.latency;
    return std::min(2 * pass, 2 * (up + size / (tree_bandwidth * bandwidth)));
}

Link fit_link(const std::vector<CommunicationSample>& samples, int processes) {
    CHECK(samples.size() >= 2 && processes > 1, "{} measurements of {} processes; expected 2 or more of both",
          samples.size(), processes);
    // Relative errors: 1 = alpha * steps / t + bytes / t / beta, solved by its normal equations.
    double ss = 0, sb = 0, bb = 0, s1 = 0, b1 = 0;
    for (const CommunicationSample& sample : samples) {
        const double passes = sample.kind == Collective::all_reduce ? 2 : 1;
        const double steps = passes * (processes - 1) / sample.seconds;
        const double bytes = steps * static_cast<double>(sample.bytes) / processes;
        ss += steps * steps;
        sb += steps * bytes;
        bb += bytes * bytes;
        s1 += steps;
        b1 += bytes;
    }
    const double determinant = ss * bb - sb * sb, latency = (s1 * bb - b1 * sb) / determinant,
                 per_byte = (ss * b1 - sb * s1) / determinant;
    // Samples of one size do not tell the two apart: what is left of the determinant is rounding.
    if (determinant <= 1e-9 * ss * bb || latency < 0) return {bb / b1, 0};
    if (per_byte <= 0)
        throw Error(
            "more bytes did not take longer; expected larger sizes, or a machine that does nothing else");
    return {1 / per_byte, latency};
}

namespace {

// How the time of a forward or backward pass divides: each block's share, and the head's.
struct Shares {
    double block, head;
    explicit Shares(const StepShape& step) {
        const double C = step.config.C, one = 24 * C * C + 2 * C * step.seq_len,
                     last = 2 * C * step.config.Vp();
        block = one / (step.config.L * one + last);
        head = last / (step.config.L * one + last);
    }
};

// A table's buckets stand in the order of their groups.
std::ranges::subrange<std::vector<Bucket>::const_iterator> buckets_of(const std::vector<Bucket>& buckets,
                                                                      int group) {
    return std::ranges::equal_range(buckets, group, {}, &Bucket::group);
}

}  // namespace

std::optional<StepEstimate> estimate_step(const StepShape& step, int processes, const Machines& machines) {
    const size_t sequences = step.total_batch / static_cast<size_t>(step.seq_len);
    if (sequences % static_cast<size_t>(processes) != 0) return std::nullopt;
    const auto own = static_cast<int>(sequences / static_cast<size_t>(processes));
    StepEstimate estimate;
    estimate.sequences = std::min(own, step.most_sequences);
    while (own % estimate.sequences != 0) estimate.sequences--;
    estimate.micro_steps = own / estimate.sequences;
    estimate.compute = static_cast<double>(own) * step.seq_len / step.tokens_per_second;
    if (processes == 1) return estimate;

    const double micro_step = estimate.compute / estimate.micro_steps,
                 forward = micro_step * (step.recompute_block ? 1.0 / 4 : 1.0 / 3);
    const double backward = micro_step - forward;
    const Shares shares(step);
    const std::vector<Bucket> buckets = TensorTable(step.config, processes).buckets();
    // seconds of an operation on so many bytes: most buckets are of one size
    std::map<std::pair<Collective::Kind, size_t>, double> known;
    const auto time = [&](Collective::Kind kind, Collective::Element element, size_t elements,
                          size_t& bytes_sent) {
        const Collective collective{kind, nullptr, elements, element};
        double& seconds = known.try_emplace({kind, collective.bytes()}, -1.0).first->second;
        if (seconds < 0) seconds = collective_seconds(kind, collective.bytes(), processes, machines);
        bytes_sent += collective.bytes_sent(processes);
        estimate.communication += seconds;
        return seconds;
    };
    // Backward completes the final layernorm and the head's part first, the embeddings (group 0) at its very
    // end.
    double over = 0;
    const Collective::Kind kind = step.zero == 0 ? Collective::all_reduce : Collective::reduce_scatter;
    for (int group = step.config.L + 1; group >= 0; group--) {
        const int blocks = step.config.L + 1 - std::max(group, 1);
        over = std::max(over, (shares.head + blocks * shares.block) * backward);
        for (const Bucket& b : buckets_of(buckets, group))
            over += time(kind, step.gradients, b.elements, estimate.gradient_bytes);
    }
    size_t few = 0;
    over += time(Collective::all_reduce, Collective::fp32, 4, few);  // loss, gradient norm and two flags
    estimate.exposed = over - backward;
    if (step.zero == 0) return estimate;
    // The next forward pass wants the embeddings first, then block after block.
    double gathered = 0, computed = 0;
    for (int group = 0; group <= step.config.L + 1; group++) {
        for (const Bucket& b : buckets_of(buckets, group))
            gathered += time(Collective::all_gather, step.parameters, b.elements, estimate.parameter_bytes);
        computed = std::max(computed, gathered) + (group == 0               ? 0
                                                   : group <= step.config.L ? shares.block
                                                                            : shares.head) *
                                                      forward;
    }
    estimate.exposed += computed - forward;
    return estimate;
}

std::string scaling_table(const StepShape& step, int processes, const Machines& machines) {
    const auto mib = [](size_t bytes) { return static_cast<double>(bytes) / 0x1p20; };
    const auto link = [](const Link& l) {
        return fmt::format("{:g} GB/s and {:g} us", l.bytes_per_second * 1e-9, l.latency * 1e6);
    };
    std::string text = fmt::format(
        "scaling (a model, nothing is measured): {:.0f} tokens/s a process, {} processes a machine, {} "
        "within, {} between machines\n",
        step.tokens_per_second, machines.per_machine, link(machines.within), link(machines.between));
    const auto asked = estimate_step(step, processes, machines);
    if (asked) {
        text += fmt::format(
            "  each of {} processes sends and receives in a step {:.1f} MiB of gradients ({}, {})", processes,
            mib(asked->gradient_bytes), step.gradients == Collective::bf16 ? "bf16" : "fp32",
            step.zero == 0 ? "all-reduce" : "reduce-scatter");
        if (step.zero > 0) {
            text += fmt::format(" and {:.1f} MiB of parameters ({}, all-gather)", mib(asked->parameter_bytes),
                                step.parameters == Collective::bf16 ? "bf16" : "fp32");
        }
        text += "\n";
    }
    text += fmt::format("  {:>9}{:>17}{:>11}{:>13}{:>12}{:>9}{:>8}{:>15}\n", "processes", "micro-steps",
                        "step ms", "of it comm.", "not hidden", "lost", "worst", "tokens/s");
    std::vector<int> rows;
    for (int n = 1; n < processes; n *= 2) rows.push_back(n);
    rows.push_back(processes);
    for (const int n : rows) {
        const auto row = estimate_step(step, n, machines);
        if (!row) continue;
        text += fmt::format("  {:>9} {:>17} {:>10.1f} {:>9.1f} {:>11.1f}{:>7.1f} %{:>7.1f} % {:>12.0f}\n", n,
                            fmt::format("{} x {} seq.", row->micro_steps, row->sequences),
                            row->seconds() * 1e3, row->communication * 1e3, row->exposed * 1e3,
                            row->lost() * 100, row->lost_without_overlap() * 100,
                            static_cast<double>(step.total_batch) / row->seconds());
    }
    return text + "  lost: to communication that no computation hides; worst: if none is hidden";
}
