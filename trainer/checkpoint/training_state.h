// training_state.h: state.json, the last file of a checkpoint: where training stands, and by which every
// other file is known to be whole.
//   {"format": 1, "step": .., .., "files": {"model.safetensors": {"bytes": .., "xxh3_64": "16 hex digits"},
//   ..}, "xxh3_64": ".."}
//   "val_loss" is null before a first validation, and "nan", "inf" or "-inf" if the loss is not finite.
//   The last entry is the checksum of the object without it, as it is written (keys sorted, two spaces a
//   level). XXH3: https://xxhash.com
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

struct TrainingState {
    // the last one that is in the parameters, counting from 1
    int step = 0;
    int optimizer_step = 0;  // updates that changed the parameters
    // the newest step with a finite gradient norm and a sound loss
    int sound_step = 0;
    // steps in a row, up to this one, whose gradient norm was not finite
    int skipped = 0;
    // sequences of a micro-step: with another one sums round differently
    int batch_size = 0;
    // false: validation and sample of this step were broken off by a signal
    bool evaluated = true;
    // of this step, if it was measured; it may be NaN or infinite
    std::optional<double> val_loss = {};
    nlohmann::json options = nlohmann::json::object();  // of the run, by name
    // what a run that goes on from here must have too: model shape, data
    nlohmann::json identity = nlohmann::json::object();
    nlohmann::json outlier_detector = nlohmann::json::object();  // OutlierDetector::state
};

// In nats. A fresh model has ln V, at most 11.1; weights that give the right token a probability of e^-100
// are broken.
inline constexpr double highest_sound_loss = 100;
inline bool is_sound(double loss) { return loss < highest_sound_loss; }  // and no NaN

inline constexpr const char* state_file_name = "state.json";

// Writes state.json with the sizes and checksums of all other files in folder. Error if one cannot be read or
// written.
void write_state(const std::string& folder, const TrainingState& state);

// The state in a checkpoint's folder. UsageError, in one line with the file's name, if state.json is missing
// or damaged;
// whole_checkpoint looks at every other file too: missing, of another size, of another checksum. AccessError
// or ReadError (file_access.h) if a file cannot be looked at, which says nothing of its bytes.
TrainingState read_state(const std::string& folder);
TrainingState whole_checkpoint(const std::string& folder);

// The bytes of a state.json; path is for messages only.
TrainingState parse_state(const std::string& path, std::string_view bytes);
