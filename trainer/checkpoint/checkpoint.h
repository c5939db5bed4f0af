// checkpoint.h: a checkpoint is a Hugging Face model's folder with what training needs to go on from it.
//   config.json generation_config.json model.safetensors, tokenizer files: hugging_face.h; the model is the
//                                fp32 master weights
//   optimizer_RRRR.safetensors   of process RRRR: <buffer>.<parameter>, such as
//                                exp_avg.transformer.wte.weight, fp32, in our layout: (out, in)
//                                weights, V rows of wte. Metadata: rank, world_size. One process, or several
//                                without ZeRO-1, write one file, of world_size 1, with whole tensors (begin,
//                                end: all parameters). With ZeRO-1 each writes what it keeps of each tensor,
//                                as a flat array, and the metadata say which of the tensor's elements:
//                                <parameter>: "begin-end,begin-end"
//   state.json                   written last: training_state.h
// It is written beside its place as step_XXXXXXXX.tmp-XXXXXXXX, each file made durable, and then renamed: it
// is whole or not there.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "system/host_allocator.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/data/data_loader.h"  // HostAllocator
#include "trainer/formats/hugging_face_reader.h"
#include "trainer/formats/model_file.h"
#include "trainer/model/gpt2.h"
#include "trainer/tokenizer/tokenizer.h"

// What one process writes of a model: rank 0 the master weights; each its shard of the optimizer state, or
// rank 0 all of it.
struct SnapshotShape {
    int rank, world_size;
    bool sharded;
    size_t state_elements;  // of an optimizer buffer

    template <class T>
    static SnapshotShape of(const GPT2<T>& model) {
        return {model.options().rank, model.options().world_size, model.options().sharded(),
                model.state_elements()};
    }
    bool has_masters() const { return rank == 0; }
    bool has_optimizer() const { return rank == 0 || sharded; }
    size_t bytes(const TensorTable& table, size_t optimizer_buffers) const {
        return ((has_masters() ? table.elements() : 0) +
                (has_optimizer() ? optimizer_buffers * state_elements : 0)) *
               sizeof(float);
    }
};

// The process's share of a model's state in memory of the host, so that it can be written while the model
// goes on.
class Snapshot {
public:
    // Allocates, and touches, memory for models of this shape whose optimizer has these buffers.
    Snapshot(const SnapshotShape& shape, const TensorTable& table,
             const std::vector<std::string>& optimizer_buffers, const HostAllocator& allocator);

    // All processes together.
    template <class T>
    void take(GPT2<T>& model) {
        model.read_masters(masters_.get());
        for (const auto& [name, values] : optimizer_) model.read_optimizer(name, values.get());
    }

    const SnapshotShape& shape() const { return shape_; }
    const TensorTable& table() const { return table_; }
    const float* masters() const { return masters_.get(); }
    // The optimizer's buffers by name, each of shape().state_elements floats: in the table's offsets, or
    // Stretch's.
    std::vector<std::pair<std::string, const float*>> optimizer() const;
    // The bytes of a whole checkpoint's tensors, of all processes.
    size_t checkpoint_bytes() const { return (1 + buffers_) * table_.elements() * sizeof(float); }

private:
    using Memory = std::unique_ptr<float, std::function<void(void*)>>;
    SnapshotShape shape_;
    TensorTable table_;
    size_t buffers_;
    Memory masters_;
    std::vector<std::pair<std::string, Memory>> optimizer_;
};

// A checkpoint that is being written, gone again unless it is completed. Of one process:
// RUN/checkpoints/step_XXXXXXXX takes its name last, in place of one that is there.
class UnfinishedCheckpoint {
public:
    // Error if it cannot be made, or the disk has less than `bytes` free.
    UnfinishedCheckpoint(const std::string& run_folder, int step, size_t bytes);
    ~UnfinishedCheckpoint();
    UnfinishedCheckpoint(const UnfinishedCheckpoint&) = delete;

    const std::string& folder() const { return folder_; }
    // Once all files are in folder(): state.json with their checksums, and the name. Error if that fails.
    void complete(const TrainingState& state);

private:
    std::string path_, folder_;
};

// Writes what the snapshot's process has to write into folder. Error if it cannot.
void write_checkpoint_files(const std::string& folder, const GPT2Config& config, const Tokenizer& tokenizer,
                            const Snapshot& snapshot);

// Throws Error if the disk that folder lies on has less than `bytes` free, and a reserve for what else the
// run writes.
void check_free_space(const std::string& folder, size_t bytes);

// Gives take() every buffer of the optimizer, one at a time, from a checkpoint's folder, however many
// processes wrote it: elements in the table's offsets, zero where padded. UsageError, before the first one,
// if the files' buffers are not these or do not fit the table.
void read_optimizer_state(const std::string& folder, const TensorTable& table,
                          const std::vector<std::string>& buffers,
                          const std::function<void(const std::string& buffer, const float* values)>& take);

// Puts a model where training stood. The checkpoint was found whole before, and its checksums are not read
// again; UsageError if it is another model's or another optimizer's.
template <class T>
void load_checkpoint(GPT2<T>& model, const std::string& folder, const TrainingState& state) {
    load_weights(model, *open_hugging_face_model(folder));
    read_optimizer_state(
        folder, model.table(), model.optimizer_buffers(),
        [&](const std::string& buffer, const float* values) { model.write_optimizer(buffer, values); });
    model.set_optimizer_step(state.optimizer_step);
}
