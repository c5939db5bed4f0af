// training_state.h: state.json, the last file of a checkpoint: the state of training, and checksums of all
// other files.
//   {"format": 1, "step": .., .., "files": {"model.safetensors": {"bytes": .., "xxh3_64": "16 hex digits"},
//   ..}, "xxh3_64": ".."}
//   "val_loss" is null before the first validation, and "nan", "inf" or "-inf" if the loss is not finite.
//   The last entry is the checksum of the object without that entry, as written (sorted keys, indented by
//   two spaces). XXH3: https://xxhash.com
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

struct TrainingState {
    // the last step that the parameters include, counting from 1
    int step = 0;
    int optimizer_step = 0;  // updates that changed the parameters
    // the newest step with a finite gradient norm and a plausible loss; "sound_step" in the file
    int last_finite_step = 0;
    // consecutive steps, up to this one, whose gradient norm was not finite
    int skipped = 0;
    // sequences in a micro-step; another number rounds sums differently
    int batch_size = 0;
    // false: a signal interrupted this step's validation or sample
    bool evaluated = true;
    // of this step, if it was measured; it may be NaN or infinite
    std::optional<double> val_loss = {};
    nlohmann::json options = nlohmann::json::object();  // the run's options, by name
    // what a resumed run must have in common: the model's shape, the data
    nlohmann::json identity = nlohmann::json::object();
    nlohmann::json outlier_detector = nlohmann::json::object();  // OutlierDetector::state
};

// In nats. A fresh model has a loss of ln V, at most 11.1; weights that give the right token a probability
// of e^-100 are broken.
inline constexpr double highest_plausible_loss = 100;
inline bool is_plausible(double loss) { return loss < highest_plausible_loss; }  // false for NaN

inline constexpr const char* state_file_name = "state.json";

// Writes state.json with the sizes and checksums of all other files in folder. Error if a file cannot be
// read or written.
void write_state(const std::string& folder, const TrainingState& state);

// Records in the state.json of a whole checkpoint that its step has been evaluated since, with this
// validation loss, if it was measured. The file is replaced as a whole or, with an Error, not at all.
void add_evaluation(const std::string& folder, const std::optional<double>& val_loss);

// Which of a checkpoint's files must be whole. A model can be opened without the optimizer's, which may have
// been removed; a run cannot be resumed without them.
enum class CheckpointFiles { all, model };

// Reads state.json in a checkpoint's folder. whole_checkpoint also verifies that these other files are there
// and have their sizes and checksums. A one-line UsageError names a file that is missing or damaged.
// AccessError or ReadError (file_access.h) if a file cannot be examined, which does not mean that it is
// damaged.
TrainingState read_state(const std::string& folder);
TrainingState whole_checkpoint(const std::string& folder, CheckpointFiles which = CheckpointFiles::all);

// Parses the bytes of a state.json; path is for messages only.
TrainingState parse_state(const std::string& path, std::string_view bytes);
