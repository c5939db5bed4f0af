#include "trainer/run/replicas.h"

#include <fmt/format.h>

#include <algorithm>

#include "system/error.h"
#include "system/json_text.h"

using nlohmann::json;

ResumePoint find_resume_point(const Options& options, Communicator& communicator, const Note& note) {
    ResumePoint point;
    if (communicator.rank() == 0) point = find_resume_point(options, note);
    const std::vector<std::string> folders = gather_texts(communicator, point.run_folder),
                                   checkpoints = gather_texts(communicator, point.checkpoint);
    if (communicator.rank() == 0) return point;
    point.run_folder = folders[0];
    point.checkpoint = checkpoints[0];
    if (!point.checkpoint.empty()) point.state = read_state(point.checkpoint);
    return point;
}

static std::string value_at(const json& description, const json::json_pointer& pointer) {
    return description.contains(pointer) ? shown(description.at(pointer)) : "nothing";
}

void check_same_start(Communicator& communicator, const json& description) {
    // JSON cannot hold bytes of a path that are not UTF-8; they are replaced.
    const std::vector<std::string> texts =
        gather_texts(communicator, description.dump(-1, ' ', false, json::error_handler_t::replace));
    const json first = parse_json(texts[0]);
    for (size_t rank = 1; rank < texts.size(); rank++) {
        if (texts[rank] == texts[0]) continue;
        const json theirs = parse_json(texts[rank]), differences = json::diff(first, theirs);
        const json::json_pointer pointer(differences.at(0).at("path").get<std::string>());
        throw UsageError(fmt::format(
            "rank {} was started differently from rank 0: {} is {} instead of {}; expected the "
            "same program, options and data on all ranks",
            rank, pointer.to_string().substr(1), value_at(theirs, pointer), value_at(first, pointer)));
    }
}

void check_replicas(Communicator& communicator, uint64_t checksum, int step) {
    const std::vector<std::string> checksums = gather_texts(communicator, std::to_string(checksum));
    const auto other = std::find_if(checksums.begin(), checksums.end(),
                                    [&](const std::string& theirs) { return theirs != checksums[0]; });
    if (other != checksums.end())
        throw Error(fmt::format("step {}: the parameters of rank {} differ from those of rank 0", step,
                                other - checksums.begin()));
}

bool in_any_process(Communicator& communicator, bool condition) {
    return sum_over_processes(communicator, {condition ? 1.0 : 0.0})[0] > 0;
}

size_t smallest_over_processes(Communicator& communicator, size_t mine) {
    size_t smallest = mine;
    for (const std::string& theirs : gather_texts(communicator, std::to_string(mine)))
        smallest = std::min<size_t>(smallest, std::stoull(theirs));
    return smallest;
}
