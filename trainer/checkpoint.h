// checkpoint.h: a checkpoint is a Hugging Face model's folder with what training needs to go on from it.
//   config.json generation_config.json model.safetensors, tokenizer files   hugging_face.h; the model is the fp32 master weights
//   optimizer_RRRR.safetensors   of process RRRR: <buffer>.<parameter>, such as exp_avg.transformer.wte.weight, fp32, in our layout: (out, in)
//                                weights, V rows of wte. Metadata: rank, world_size, and begin and end of the process's flat range, counted in
//                                parameters in the table's order, without padding
//   state.json                   written last: training_state.h
// It is written beside its place as step_XXXXXXXX.tmp-XXXXXXXX, each file made durable, and then renamed: it is whole or not there.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data_loader.h"  // HostAllocator
#include "gpt2.h"
#include "hugging_face_reader.h"
#include "model_file.h"
#include "training_state.h"

// A model's master weights and optimizer state in memory of the host, so that they can be written while the model goes on.
class Snapshot {
public:
    // Allocates, and touches, memory for models with this table whose optimizer has these buffers.
    Snapshot(const TensorTable& table, const std::vector<std::string>& optimizer_buffers, const HostAllocator& allocator);

    static size_t bytes(const TensorTable& table, size_t optimizer_buffers) { return (1 + optimizer_buffers) * table.elements() * sizeof(float); }

    template <class T>
    void take(GPT2<T>& model) {
        model.read_masters(masters_.get());
        for (const auto& [name, values] : optimizer_) model.read_optimizer(name, values.get());
    }

    const TensorTable& table() const { return table_; }
    const float* masters() const { return masters_.get(); }
    // The optimizer's buffers by name, each of table().elements() floats in the table's offsets.
    std::vector<std::pair<std::string, const float*>> optimizer() const;

private:
    using Memory = std::unique_ptr<float, std::function<void(void*)>>;
    TensorTable table_;
    Memory masters_;
    std::vector<std::pair<std::string, Memory>> optimizer_;
};

// Writes RUN/checkpoints/step_XXXXXXXX, in place of one that is there. Error, and nothing is left of it, if it cannot be written or the disk
// has not enough space.
void write_checkpoint(const std::string& run_folder, const GPT2Config& config, const std::string& tokenizer, const Snapshot& snapshot,
                      const TrainingState& state);

// Throws Error if the disk that folder lies on has less than `bytes` free, and a reserve for what else the run writes.
void check_free_space(const std::string& folder, size_t bytes);

// Gives take() every buffer of the optimizer, one at a time, from a checkpoint's folder: elements in the table's offsets, zero where padded.
// UsageError, before the first one, if the file's buffers are not these or do not fit the table.
void read_optimizer_state(const std::string& folder, const TensorTable& table, const std::vector<std::string>& buffers,
                          const std::function<void(const std::string& buffer, const float* values)>& take);

// Puts a model where training stood. The checkpoint was found whole before, and its checksums are not read again; UsageError if it is another
// model's or another optimizer's.
template <class T>
void load_checkpoint(GPT2<T>& model, const std::string& folder, const TrainingState& state) {
    load_weights(model, *open_hugging_face_model(folder));
    read_optimizer_state(folder, model.table(), model.optimizer_buffers(),
                         [&](const std::string& buffer, const float* values) { model.write_optimizer(buffer, values); });
    model.set_optimizer_step(state.optimizer_step);
}
