// checkpoint.h: a checkpoint is the folder of a Hugging Face model, plus the state that training needs to
// continue.
//   config.json generation_config.json model.safetensors, tokenizer files: hugging_face.h; the model is the
//                                fp32 master weights
//   optimizer_RRRR.safetensors   of process RRRR: <buffer>.<parameter>, such as
//                                exp_avg.transformer.wte.weight, fp32, in our layout: (out, in)
//                                weights, V rows of wte. A matrix that Muon updates has momentum_buffer
//                                alone. Metadata: rank, world_size. One process, or several
//                                without ZeRO-1, write one file, of world_size 1, with whole tensors (begin,
//                                end: all parameters). With ZeRO-1 each writes what it keeps of each tensor,
//                                as a flat array, and the metadata say which of the tensor's elements:
//                                <parameter>: "begin-end,begin-end"
//   state.json                   written last: training_state.h
// It is written under the temporary name step_XXXXXXXX.tmp-XXXXXXXX, each file is made durable, and then it
// is renamed, so a checkpoint under its name is complete.
#pragma once
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "system/host_allocator.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/engine/model.h"
#include "trainer/models/hugging_face_reader.h"
#include "trainer/models/model_file.h"
#include "trainer/tokenizer/tokenizer.h"

// The part of a model's state that one process writes. Rank 0 writes the master weights. The optimizer
// state is written by rank 0, or with ZeRO-1 each rank writes its shard.
struct SnapshotShape {
    int rank, world_size;
    bool sharded;
    std::array<size_t, 2> state_elements;  // of this rank's part of each optimizer buffer

    template <class T>
    static SnapshotShape of(const Model<T>& model) {
        return {model.options().rank,
                model.options().world_size,
                model.options().sharded(),
                {model.state_elements(0), model.state_elements(1)}};
    }
    bool has_masters() const { return rank == 0; }
    bool has_optimizer() const { return rank == 0 || sharded; }
    size_t bytes(const TensorTable& table, size_t optimizer_buffers) const {
        size_t elements = has_masters() ? table.elements() : 0;
        for (size_t i = 0; has_optimizer() && i < optimizer_buffers; i++) elements += state_elements[i];
        return elements * sizeof(float);
    }
};

// Bytes of the tensors in a whole checkpoint with so many optimizer buffers.
inline size_t checkpoint_bytes(const TensorTable& table, size_t buffers) {
    size_t elements = table.elements();
    for (size_t i = 0; i < buffers; i++) elements += table.state_elements(i, false);
    return elements * sizeof(float);
}

// A copy of this process's part of a model's state in host memory, which can be written while training
// continues.
class Snapshot {
public:
    // Allocates and touches memory for this shape and these optimizer buffers.
    Snapshot(const SnapshotShape& shape, const TensorTable& table,
             const std::vector<std::string>& optimizer_buffers, const HostAllocator& allocator);

    // Called by all ranks together.
    template <class T>
    void take(Model<T>& model) {
        model.read_masters(masters_.get());
        for (const auto& [name, values] : optimizer_) model.read_optimizer(name, values.get());
    }

    const SnapshotShape& shape() const { return shape_; }
    const TensorTable& table() const { return table_; }
    const float* masters() const { return masters_.get(); }
    // The optimizer's buffers by name, each of shape().state_elements floats, at the offsets of FlatRange.
    std::vector<std::pair<std::string, const float*>> optimizer() const;
    // Bytes of the tensors in a whole checkpoint, over all processes.
    size_t checkpoint_bytes() const { return ::checkpoint_bytes(table_, buffers_); }

private:
    using Memory = std::unique_ptr<float, std::function<void(void*)>>;
    SnapshotShape shape_;
    TensorTable table_;
    size_t buffers_;
    Memory masters_;
    std::vector<std::pair<std::string, Memory>> optimizer_;
};

// A checkpoint that is being written; the destructor removes it unless it was completed. Used by one process
// only. It gets its name RUN/checkpoints/step_XXXXXXXX last; a run has at most one checkpoint of a step.
class UnfinishedCheckpoint {
public:
    // Error if the folder cannot be made, or the disk has less than `bytes` free.
    UnfinishedCheckpoint(const std::string& run_folder, int step, size_t bytes);
    ~UnfinishedCheckpoint();
    UnfinishedCheckpoint(const UnfinishedCheckpoint&) = delete;

    const std::string& folder() const { return folder_; }
    // Called when all files are in folder(): writes state.json with their checksums, then renames the
    // folder. Error if that fails.
    void complete(const TrainingState& state);

private:
    std::string path_, folder_;
};

// Writes this process's files of the checkpoint into folder. Error if that fails.
void write_checkpoint_files(const std::string& folder, const ModelConfig& config, const Tokenizer& tokenizer,
                            const Snapshot& snapshot);

// Free bytes on the disk of path or, if path does not exist yet, of its nearest existing parent.
// std::nullopt: unknown.
std::optional<size_t> free_bytes(const std::string& path);
// Free bytes that a disk needs for `count` checkpoints with `bytes` of tensors each: their other files, and a
// reserve for the run's, are counted in. A double, since `count` may be absurd.
double space_of_checkpoints(size_t bytes, size_t count);
// Error if the disk of `folder` has less free space than a checkpoint with `bytes` of tensors needs.
void check_free_space(const std::string& folder, size_t bytes);

// Reads a checkpoint's optimizer state, written by any number of processes, and passes each buffer to
// take(): elements at the table's offsets, zero in padding. UsageError, before the first call, if the files
// do not hold these buffers or do not fit the table.
void read_optimizer_state(const std::string& folder, const TensorTable& table,
                          const std::vector<std::string>& buffers,
                          const std::function<void(const std::string& buffer, const float* values)>& take);

// Loads weights and optimizer state into a model. The checkpoint's checksums must have been verified
// before; they are not read again. UsageError if it belongs to another model or optimizer.
template <class T>
void load_checkpoint(Model<T>& model, const std::string& folder, const TrainingState& state) {
    load_weights(model, *open_hugging_face_model(folder));
    read_optimizer_state(
        folder, model.table(), model.optimizer_buffers(),
        [&](const std::string& buffer, const float* values) { model.write_optimizer(buffer, values); });
    model.set_optimizer_step(state.optimizer_step);
}
