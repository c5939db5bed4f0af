#include "checkpoint.h"

#include <fcntl.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>

#include "atomic_file.h"
#include "error.h"
#include "hugging_face.h"
#include "run_folder.h"
#include "safetensors.h"

namespace fs = std::filesystem;

namespace {

constexpr size_t reserve_bytes = size_t{16} << 20;  // left on the disk for what else the run writes
constexpr size_t metadata_bytes = size_t{8} << 20;  // more than the configuration and the tokenizer's files take
constexpr const char optimizer_file[] = "optimizer_0000.safetensors";

std::string optimizer_tensor(const std::string& buffer, const Tensor& tensor) { return buffer + "." + tensor.name; }

std::vector<size_t> unpadded_shape(const Tensor& tensor) {
    std::vector<size_t> shape = tensor.shape;
    shape[0] = shape[0] * tensor.unpadded_elements / tensor.elements;
    return shape;
}

void write_optimizer_state(const std::string& path, const Snapshot& snapshot) {
    std::vector<NamedTensor> tensors;
    for (const auto& [buffer, values] : snapshot.optimizer()) {
        for (const Tensor& t : snapshot.table().tensors())
            tensors.push_back({optimizer_tensor(buffer, t), "F32", unpadded_shape(t), values + t.offset});
    }
    write_safetensors(path, tensors, {{"rank", "0"}, {"world_size", "1"}, {"begin", "0"}, {"end", std::to_string(snapshot.table().parameters())}});
}

// A folder that is gone again unless it is renamed.
class TemporaryCheckpoint {
public:
    explicit TemporaryCheckpoint(const std::string& final_path) : path_(temporary_beside(final_path)) {
        std::error_code failure;
        fs::create_directory(path_, failure);
        if (failure) throw Error(fmt::format("{}: cannot be made: {}", path_, failure.message()));
    }
    ~TemporaryCheckpoint() {
        std::error_code ignored;
        if (!path_.empty()) fs::remove_all(path_, ignored);
    }
    TemporaryCheckpoint(const TemporaryCheckpoint&) = delete;
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }
    const std::string& path() const { return path_; }

    void rename_to(const std::string& final_path) {
        // An older one with this name, such as one whose evaluation was broken off, gives it up at the very moment in which this one takes it.
        if (renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) != 0) {
            // There is none, or the file system cannot exchange names: an older one makes room first.
            std::error_code absent, failure;
            const std::string old = temporary_beside(final_path);
            fs::rename(final_path, old, absent);
            fs::rename(path_, final_path, failure);
            if (failure) throw Error(fmt::format("{}: cannot be given its name: {}", final_path, failure.message()));
            path_ = absent ? "" : old;
        }
        sync_folder(fs::path(final_path).parent_path());
    }

private:
    std::string path_;
};

}  // namespace

Snapshot::Snapshot(const TensorTable& table, const std::vector<std::string>& optimizer_buffers, const HostAllocator& allocator) : table_(table) {
    const auto memory = [&] {
        Memory values(static_cast<float*>(allocator.allocate(table_.elements() * sizeof(float))), allocator.free);
        std::fill_n(values.get(), table_.elements(), 0.0f);  // the system gives the pages now, not in the middle of the run
        return values;
    };
    masters_ = memory();
    for (const std::string& name : optimizer_buffers) optimizer_.emplace_back(name, memory());
}

std::vector<std::pair<std::string, const float*>> Snapshot::optimizer() const {
    std::vector<std::pair<std::string, const float*>> buffers;
    for (const auto& [name, memory] : optimizer_) buffers.emplace_back(name, memory.get());
    return buffers;
}

void check_free_space(const std::string& folder, size_t bytes) {
    struct statvfs status;
    if (statvfs(folder.c_str(), &status) != 0) throw Error(fmt::format("{}: {}", folder, std::strerror(errno)));
    const size_t free = size_t{status.f_bavail} * size_t{status.f_frsize};
    if (free < reserve_bytes || free - reserve_bytes < bytes) {
        throw Error(fmt::format("{}: {:.1f} MiB are free, but a checkpoint of {:.1f} MiB and {:.1f} MiB for the rest of the run are needed", folder,
                                static_cast<double>(free) / 0x1p20, static_cast<double>(bytes) / 0x1p20,
                                static_cast<double>(reserve_bytes) / 0x1p20));
    }
}

void write_checkpoint(const std::string& run_folder, const GPT2Config& config, const std::string& tokenizer, const Snapshot& snapshot,
                      const TrainingState& state) {
    const std::string folder = checkpoints_folder(run_folder), path = checkpoint_folder(run_folder, state.step);
    std::error_code failure;
    if (fs::create_directory(folder, failure)) sync_folder(run_folder);
    if (failure) throw Error(fmt::format("{}: cannot be made: {}", folder, failure.message()));
    check_free_space(folder, Snapshot::bytes(snapshot.table(), snapshot.optimizer().size()) + metadata_bytes);
    // The lines of the steps up to here are durable before the checkpoint is: a run that goes on from it has them.
    sync_file(metrics_file(run_folder));

    TemporaryCheckpoint temporary(path);
    write_hugging_face_model(temporary / "model.safetensors", snapshot.table(), snapshot.masters());
    write_hugging_face_metadata(temporary.path(), config, tokenizer);
    write_optimizer_state(temporary / optimizer_file, snapshot);
    write_state(temporary.path(), state);
    temporary.rename_to(path);
}

void read_optimizer_state(const std::string& folder, const TensorTable& table, const std::vector<std::string>& buffers,
                          const std::function<void(const std::string& buffer, const float* values)>& take) {
    const SafetensorsFile file(folder + "/" + optimizer_file);
    for (const std::string& buffer : buffers) {
        for (const Tensor& t : table.tensors()) {
            const std::string name = optimizer_tensor(buffer, t);
            CHECK(file.contains(name) && file.at(name).dtype == "F32" && file.at(name).shape == unpadded_shape(t),
                  "{}: has no {} of this model's shape; expected the state of the same optimizer and model", file.path(), name);
        }
    }
    CHECK(file.tensors().size() == buffers.size() * table.tensors().size(), "{}: holds {} tensors, but the optimizer of this run has {}", file.path(),
          file.tensors().size(), buffers.size() * table.tensors().size());
    std::vector<float> values(table.elements(), 0.0f);
    for (const std::string& buffer : buffers) {
        for (const Tensor& t : table.tensors()) {
            std::memcpy(values.data() + t.offset, file.at(optimizer_tensor(buffer, t)).data, t.unpadded_elements * sizeof(float));
        }
        take(buffer, values.data());
    }
}
