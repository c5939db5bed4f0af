// bench_communicator.cu: times of all-reduce and its kin, and the alpha and beta that the scaling model needs
// (trainer/run/scaling.h).
//   mpirun -np 4 build/release/bench_communicator
//   mpirun -np 4 build/release/bench_communicator --preset 1558M   # that model's buckets of gradients
//   The last line is an option for train_gpt2 --plan --world-size N. GB/s counts the bytes that a process
//   sends, like nccl-tests' "busbw".
#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "system/run_main.h"
#include "trainer/command_line/command_line.h"
#include "trainer/distributed/communicator.h"
#include "trainer/model/tensor_table.h"
#include "trainer/run/scaling.h"

namespace {

const std::map<std::string, Collective::Kind> kinds = {{"all_reduce", Collective::all_reduce},
                                                       {"reduce_scatter", Collective::reduce_scatter},
                                                       {"all_gather", Collective::all_gather}};
const std::map<std::string, Collective::Element> elements = {{"fp32", Collective::fp32},
                                                             {"bf16", Collective::bf16}};

const std::map<std::string, std::string> presets = {{"124M", "gpt2"}, {"1558M", "gpt2-xl"}};

// Bytes of a model's buckets of gradients, each size once.
std::vector<std::string> bucket_sizes(const std::string& model, int processes, size_t element_bytes) {
    std::set<size_t> sizes;
    const TensorTable table(GPT2Config::named(model), processes);
    for (const Bucket& bucket : table.buckets()) sizes.insert(bucket.elements * element_bytes);
    std::vector<std::string> texts;
    for (const size_t size : sizes) texts.push_back(std::to_string(size));
    return texts;
}

// Seconds of one operation: the mean over at least `least` seconds (and one warm-up), and over all processes.
double time_collective(Communicator& communicator, const Collective& collective, double least) {
    const auto run = [&](size_t repeats) {
        sum_over_processes(communicator, {0});  // all processes begin together
        const auto start = std::chrono::steady_clock::now();
        for (size_t i = 0; i < repeats; i++)
            communicator.wait(communicator.begin(collective, nullptr), nullptr);
        simt::stream_synchronize(nullptr);
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
        return sum_over_processes(communicator, {elapsed.count()}).front() / communicator.size() /
               static_cast<double>(repeats);
    };
    run(1);
    const double once = run(1);
    return run(static_cast<size_t>(std::min(1e5, 1 + least / once)));
}

// The link that explains the samples best, as an option of train_gpt2 --plan.
Link print_fit(const std::vector<CommunicationSample>& samples, const Process& process) {
    const Link link = fit_link(samples, process.world_size);
    double worst = 1;
    for (const CommunicationSample& s : samples) {
        const double ratio =
            collective_seconds(s.kind, s.bytes, process.world_size, {process.world_size, link, link}) /
            s.seconds;
        worst = std::max({worst, ratio, 1 / ratio});
    }
    fmt::print(
        "fit: alpha {:.1f} us a step of a ring, beta {:.2f} GB/s; at worst a factor of {:.2f} from what was "
        "measured\n",
        link.latency * 1e6, link.bytes_per_second * 1e-9, worst);
    fmt::print("--{} {:.3g},{:.3g}\n", process.local_size == process.world_size ? "link" : "network",
               link.bytes_per_second * 1e-9, link.latency * 1e6);
    return link;
}

void bench(int argc, char** argv) {
    std::vector<std::string> sizes = {"4K", "16K", "64K", "256K", "1M", "4M", "16M", "64M", "256M", "512M"},
                             operations = {"all_reduce", "reduce_scatter", "all_gather"};
    Collective::Element element = Collective::fp32;
    double seconds = 0.5, time_limit = 60;
    std::string json;
    CLI::App app("Times what the processes of a launch send each other, and fits alpha and beta.",
                 "bench_communicator");
    auto* size_option =
        app.add_option("--size", sizes, "bytes in all parts together, such as 64K,16M")->delimiter(',');
    std::string preset;
    app.add_option("--preset", preset, "instead: the buckets of the gradients of GPT-2 124M or 1558M")
        ->check(CLI::IsMember(presets))
        ->excludes(size_option);
    app.add_option("--operation", operations, "")->delimiter(',')->check(CLI::IsMember(kinds));
    add_choice(app, "--dtype", element, elements, "of the elements");
    add_number(app, "--seconds", seconds, 0, 1e3, "that a size is measured for, at the least");
    app.add_option("--json", json, "write the results to this file");
    if (!parse(app, argc, argv)) return;

    const Process process = this_process();
    CHECK(process.world_size > 1, "one process has nobody to send to; expected mpirun -np 2, or more");
    if (!preset.empty())
        sizes = bucket_sizes(presets.at(preset), process.world_size,
                             Collective{Collective::all_reduce, nullptr, 0, element}.element_bytes());
    simt::select_device(process.local_rank, process.local_size);
    const auto communicator = make_communicator(process, time_limit);
    const bool speaks = process.rank == 0;
    nlohmann::json rows = nlohmann::json::array();
    std::vector<CommunicationSample> samples;
    if (speaks) {
        fmt::print("{} processes, {} on this machine, over {}\n", process.world_size, process.local_size,
                   communicator_library());
        fmt::print("{:<16}{:>12}{:>14}{:>10}\n", "operation", "bytes", "us", "GB/s");
    }
    for (const std::string& operation : operations) {
        for (const std::string& size : sizes) {
            const size_t unit = 4 * static_cast<size_t>(process.world_size);
            Collective collective{kinds.at(operation), nullptr, 0, element};
            collective.count =
                std::max<size_t>(1, parse_bytes("--size", size) / collective.element_bytes() / unit) * unit;
            const simt::DeviceBuffer<std::byte> values(collective.bytes());
            simt::fill_zero(values.data(), values.bytes(), nullptr);
            collective.values = values.data();
            const double taken = time_collective(*communicator, collective, seconds);
            const double rate = static_cast<double>(collective.bytes_sent(process.world_size)) / taken;
            samples.push_back({collective.kind, collective.bytes(), taken});
            rows.push_back({{"operation", operation},
                            {"bytes", collective.bytes()},
                            {"seconds", taken},
                            {"bytes_per_second", rate}});
            if (speaks)
                fmt::print("{:<16}{:>12}{:>14.1f}{:>10.3f}\n", operation, collective.bytes(), taken * 1e6,
                           rate * 1e-9);
            if (speaks) std::fflush(stdout);
        }
    }
    if (!speaks) return;
    const Link link = print_fit(samples, process);
    if (json.empty()) return;
    std::ofstream file(json);
    file << nlohmann::json{{"processes", process.world_size},
                           {"processes_a_machine", process.local_size},
                           {"library", communicator_library()},
                           {"device", simt::device_info().name},
                           {"alpha_seconds", link.latency},
                           {"beta_bytes_per_second", link.bytes_per_second},
                           {"measured", rows}}
                .dump(1)
         << "\n";
    if (!file) throw Error("cannot write " + json);
}

}  // namespace

int main(int argc, char** argv) {
    return run_main("bench_communicator", [&] { bench(argc, argv); });
}
