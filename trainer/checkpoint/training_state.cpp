#include "trainer/checkpoint/training_state.h"

#include <xxhash.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <utility>

#include "system/atomic_file.h"
#include "system/file_access.h"
#include "system/file_reader.h"
#include "system/json_text.h"
#include "system/printable.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int format = 1;
constexpr const char checksum_key[] = "xxh3_64";

std::string checksum(std::string_view bytes) {
    return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}
// The checksum of a whole file. ReadError if it cannot be read.
std::string checksum(const FileReader& file) {
    const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                                XXH3_freeState);
    XXH3_64bits_reset(state.get());
    file.read_pieces(0, file.size(), [&](std::string_view piece) {
        XXH3_64bits_update(state.get(), piece.data(), piece.size());
    });
    return fmt::format("{:016x}", XXH3_64bits_digest(state.get()));
}

// null: not measured. JSON has no numbers that are not finite; they become "nan", "inf" or "-inf".
json loss_object(const std::optional<double>& loss) {
    if (!loss) return nullptr;
    return std::isfinite(*loss) ? json(*loss) : json(std::isnan(*loss) ? "nan" : fmt::format("{}", *loss));
}
std::optional<double> loss_of(const std::string& path, const json& object) {
    if (object.is_null()) return std::nullopt;
    if (object == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (object == "inf" || object == "-inf") return object == "inf" ? HUGE_VAL : -HUGE_VAL;
    CHECK(object.is_number(), "{}: is damaged: the validation loss is {}", path, shown(object));
    return object.get<double>();
}
// JSON cannot hold bytes of an option, such as a path, that are not UTF-8; they are replaced.
std::string text_of(const json& object) {
    return object.dump(2, ' ', true, json::error_handler_t::replace) + "\n";
}

// Parses state.json and verifies that its bytes are exactly those that were written.
json checked_object(const std::string& path, std::string_view bytes) {
    const json whole = parse_json(bytes);
    CHECK(whole.is_object() && whole.contains(checksum_key) && whole[checksum_key].is_string(),
          "{}: is damaged: no JSON object with a checksum", path);
    json object = whole;
    object.erase(checksum_key);
    CHECK(text_of(whole) == bytes &&
              checksum(text_of(object)) == whole[checksum_key].get_ref<const std::string&>(),
          "{}: is damaged: its checksum does not match", path);
    CHECK(object.value("format", json()) == format, "{}: has the format {}; expected {}", path,
          shown(object.value("format", json())), format);
    return object;
}

json state_object(const std::string& path) {
    CHECK(is_there(path), "{}: is missing", path);
    return checked_object(path, FileReader(path).text());
}

TrainingState state_of(const std::string& path, const json& object) {
    TrainingState state;
    state.step = whole_number<int>(object.at("step"));
    state.optimizer_step = whole_number<int>(object.at("optimizer_step"));
    state.skipped = whole_number<int>(object.at("skipped"));
    // Older versions wrote no sound_step.
    state.last_finite_step =
        object.contains("sound_step") ? whole_number<int>(object["sound_step"]) : state.step - state.skipped;
    state.batch_size = whole_number<int>(object.at("batch_size"));
    object.at("evaluated").get_to(state.evaluated);
    state.val_loss = loss_of(path, object.at("val_loss"));
    state.options = object.at("options");
    state.identity = object.at("identity");
    state.outlier_detector = object.at("outlier_detector");
    CHECK(state.step > 0 && state.optimizer_step >= 0 && state.optimizer_step <= state.step &&
              state.skipped >= 0 && state.batch_size > 0,
          "{}: is damaged: step {}, {} updates, {} skipped, batch size {}", path, state.step,
          state.optimizer_step, state.skipped, state.batch_size);
    return state;
}

// Writes state.json with its own checksum.
void write_object(const std::string& folder, json object) {
    object[checksum_key] = checksum(text_of(object));
    write_atomically(folder + "/" + state_file_name, text_of(object));
}

// Turns the JSON library's exceptions about damaged or foreign files into a UsageError.
template <class Action>
auto reading(const std::string& path, Action action) {
    try {
        return action();
    } catch (const json::exception& error) {
        throw UsageError(fmt::format("{}: is damaged: {}", path, printable(error.what())));
    }
}

void check_file(const std::string& folder, const std::string& name, size_t bytes,
                const std::string& expected) {
    const fs::path inside = fs::path(name).lexically_normal();
    CHECK(!name.empty() && inside == name && inside.is_relative() && *inside.begin() != ".." && name != ".",
          "{}/{}: names the file '{}', outside its folder", folder, state_file_name, printable(name));
    const std::string path = folder + "/" + name;
    CHECK(is_there(path), "{}: is missing", path);
    const FileReader file(path);
    CHECK(file.size() == bytes, "{}: has {} bytes, but {} were written", path, file.size(), bytes);
    CHECK(checksum(file) == expected, "{}: is damaged: its checksum does not match", path);
}

}  // namespace

TrainingState parse_state(const std::string& path, std::string_view bytes) {
    return reading(path, [&] { return state_of(path, checked_object(path, bytes)); });
}

TrainingState read_state(const std::string& folder) {
    const std::string path = folder + "/" + state_file_name;
    return reading(path, [&] { return state_of(path, state_object(path)); });
}

TrainingState whole_checkpoint(const std::string& folder, CheckpointFiles which) {
    const std::string path = folder + "/" + state_file_name;
    return reading(path, [&] {
        const json object = state_object(path);
        TrainingState state = state_of(path, object);
        for (const auto& [name, file] : object.at("files").items()) {
            if (which == CheckpointFiles::model && name.starts_with("optimizer_")) continue;
            check_file(folder, name, whole_number<size_t>(file.at("bytes")),
                       file.at(checksum_key).get<std::string>());
        }
        return state;
    });
}

void write_state(const std::string& folder, const TrainingState& state) {
    json files = json::object();
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
        if (entry.is_directory()) continue;  // of a tokenizer's further files
        const FileReader file(entry.path());
        files[entry.path().lexically_relative(folder)] = {{"bytes", file.size()},
                                                          {checksum_key, checksum(file)}};
    }
    json object = {{"format", format},
                   {"step", state.step},
                   {"optimizer_step", state.optimizer_step},
                   {"sound_step", state.last_finite_step},
                   {"skipped", state.skipped},
                   {"batch_size", state.batch_size},
                   {"evaluated", state.evaluated},
                   {"val_loss", loss_object(state.val_loss)},
                   {"options", state.options},
                   {"identity", state.identity},
                   {"outlier_detector", state.outlier_detector},
                   {"files", files}};
    write_object(folder, std::move(object));
}

void add_evaluation(const std::string& folder, const std::optional<double>& val_loss) {
    const std::string path = folder + "/" + state_file_name;
    json object = reading(path, [&] { return state_object(path); });
    object["evaluated"] = true;
    object["val_loss"] = loss_object(val_loss);
    write_object(folder, std::move(object));
}
