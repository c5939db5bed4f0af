#include "trainer/checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "system/atomic_file.h"
#include "system/error.h"
#include "system/file_access.h"
#include "system/printable.h"
#include "trainer/checkpoint/run_folder.h"
#include "trainer/formats/safetensors.h"
#include "trainer/models/hugging_face.h"

namespace fs = std::filesystem;

namespace {

constexpr size_t reserve_bytes = size_t{16} << 20;  // left free on the disk for the run's other files
// an upper bound for the configuration and the tokenizer's files
constexpr size_t metadata_bytes = size_t{8} << 20;

std::string optimizer_file(int rank) { return fmt::format("optimizer_{:04}.safetensors", rank); }
// The name of a tensor's part of a buffer; "" if it has none.
std::string optimizer_tensor(const TensorTable& table, const std::string& buffer, const Tensor& tensor) {
    const std::string name = table.updates_whole(tensor) ? buffer_name_of_matrix(buffer) : buffer;
    return name.empty() ? "" : name + "." + tensor.name;
}

std::vector<size_t> unpadded_shape(const Tensor& tensor) {
    std::vector<size_t> shape = tensor.shape;
    shape[0] = shape[0] * tensor.unpadded_elements / tensor.elements;
    return shape;
}

// A range of a tensor's elements, [begin, end).
struct Range {
    size_t begin, end;
};

// The elements of a tensor that a process keeps: its ranges are contiguous in the process's state and begin
// where the first piece does.
struct KeptTensor {
    const Tensor* tensor;
    FlatRange first;
    std::vector<Range> ranges;

    size_t elements() const {
        size_t sum = 0;
        for (const Range& range : ranges) sum += range.end - range.begin;
        return sum;
    }
};
std::vector<KeptTensor> kept_tensors(const TensorTable& table, int rank) {
    std::vector<KeptTensor> kept;
    for (const FlatRange& piece : table.shard_of_tensors(rank)) {
        const Tensor* const tensor = &table.tensors()[piece.tensor];
        if (kept.empty() || kept.back().tensor != tensor) kept.push_back({tensor, piece, {}});
        kept.back().ranges.push_back(
            {piece.offset - tensor->offset, piece.offset - tensor->offset + piece.elements});
    }
    return kept;
}

std::string text_of(const std::vector<Range>& ranges) {
    std::string text;
    for (const Range& range : ranges)
        text += fmt::format("{}{}-{}", text.empty() ? "" : ",", range.begin, range.end);
    return text;
}

std::vector<Range> ranges_of(const std::string& path, const std::string& name, const std::string& text,
                             size_t elements) {
    std::vector<Range> ranges;
    const char *at = text.data(), *const end = at + text.size();
    while (at < end) {
        Range range{};
        const auto first = std::from_chars(at, end, range.begin);
        const bool dash = first.ec == std::errc() && first.ptr < end && *first.ptr == '-';
        const auto second = dash ? std::from_chars(first.ptr + 1, end, range.end) : first;
        CHECK(dash && second.ec == std::errc() && (second.ptr == end || *second.ptr == ',') &&
                  range.begin < range.end && range.end <= elements,
              "{}: {} has the elements '{}'; expected ranges within its {} elements, such as 0-128,512-640",
              path, name, printable(text), elements);
        ranges.push_back(range);
        at = second.ptr + 1;
    }
    return ranges;
}

void write_optimizer_state(const std::string& folder, const Snapshot& snapshot) {
    const SnapshotShape& shape = snapshot.shape();
    std::vector<NamedTensor> tensors;
    std::map<std::string, std::string> metadata = {
        {"rank", std::to_string(shape.sharded ? shape.rank : 0)},
        {"world_size", std::to_string(shape.sharded ? shape.world_size : 1)}};
    if (!shape.sharded) {
        metadata["begin"] = "0";
        metadata["end"] = std::to_string(snapshot.table().parameters());
    }
    const auto buffers = snapshot.optimizer();
    for (size_t i = 0; i < buffers.size(); i++) {
        const auto add = [&](const Tensor& t, const std::vector<size_t>& values_shape, const FlatRange& at) {
            const std::string name = optimizer_tensor(snapshot.table(), buffers[i].first, t);
            if (name.empty()) return;
            tensors.push_back({name, "F32", values_shape, buffers[i].second + at.offset_in(i)});
        };
        if (!shape.sharded) {
            for (const FlatRange& whole : snapshot.table().whole_tensors()) {
                const Tensor& t = snapshot.table()[whole.tensor];
                add(t, unpadded_shape(t), whole);
            }
            continue;
        }
        for (const KeptTensor& kept : kept_tensors(snapshot.table(), shape.rank)) {
            add(*kept.tensor, {kept.elements()}, kept.first);
            metadata[kept.tensor->name] = text_of(kept.ranges);
        }
    }
    write_safetensors(folder + "/" + optimizer_file(shape.rank), tensors, metadata);
}

}  // namespace

UnfinishedCheckpoint::UnfinishedCheckpoint(const std::string& run_folder, int step, size_t bytes)
    : path_(checkpoint_folder(run_folder, step)), folder_(temporary_beside(path_)) {
    const std::string parent = checkpoints_folder(run_folder);
    std::error_code failure;
    fs::create_directory(parent, failure);
    if (failure) throw Error(fmt::format("{}: cannot be made: {}", parent, failure.message()));
    check_free_space(parent, bytes);
    // The metrics up to this step become durable before the checkpoint does, so that a run resumed from it
    // has their lines.
    if (fs::exists(metrics_file(run_folder), failure)) sync_file(metrics_file(run_folder));
    sync_folder(run_folder);
    fs::create_directory(folder_, failure);
    if (failure) throw Error(fmt::format("{}: cannot be made: {}", folder_, failure.message()));
}

UnfinishedCheckpoint::~UnfinishedCheckpoint() {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

void UnfinishedCheckpoint::complete(const TrainingState& state) {
    write_state(folder_, state);
    // The run may have been resumed from a copy of the checkpoint that has this name.
    if (is_there(path_)) set_aside(path_, "superseded");
    rename_path(folder_, path_);
    try {
        sync_folder(fs::path(path_).parent_path());
    } catch (const Error&) {
        // The new name may not survive a power cut. If it cannot be taken back, the checkpoint stays.
        std::error_code ignored;
        fs::rename(path_, folder_, ignored);
        throw;
    }
    folder_.clear();
}

Snapshot::Snapshot(const SnapshotShape& shape, const TensorTable& table,
                   const std::vector<std::string>& optimizer_buffers, const HostAllocator& allocator)
    : shape_(shape), table_(table), buffers_(optimizer_buffers.size()) {
    const auto memory = [&](size_t elements) {
        Memory values(static_cast<float*>(allocator.allocate(elements * sizeof(float))), allocator.free);
        // the system provides the pages now, not in the middle of the run
        std::fill_n(values.get(), elements, 0.0f);
        return values;
    };
    if (shape.has_masters()) masters_ = memory(table.elements());
    if (!shape.has_optimizer()) return;
    for (size_t i = 0; i < optimizer_buffers.size(); i++)
        optimizer_.emplace_back(optimizer_buffers[i], memory(shape.state_elements[i]));
}

std::vector<std::pair<std::string, const float*>> Snapshot::optimizer() const {
    std::vector<std::pair<std::string, const float*>> buffers;
    for (const auto& [name, memory] : optimizer_) buffers.emplace_back(name, memory.get());
    return buffers;
}

double space_of_checkpoints(size_t bytes, size_t count) {
    return static_cast<double>(count) * static_cast<double>(bytes + metadata_bytes) +
           static_cast<double>(reserve_bytes);
}

std::optional<size_t> free_bytes(const std::string& path) {
    std::error_code failure;
    fs::path folder = fs::absolute(path, failure);
    while (!fs::exists(folder, failure) && folder.has_relative_path()) folder = folder.parent_path();
    const fs::space_info space = fs::space(folder, failure);
    if (failure || space.capacity == 0) return std::nullopt;  // some file systems count no blocks
    return space.available;
}

void check_free_space(const std::string& folder, size_t bytes) {
    const std::optional<size_t> free = free_bytes(folder);
    const double needed = space_of_checkpoints(bytes, 1);
    if (free && static_cast<double>(*free) < needed)
        throw Error(fmt::format("{}: {} are free, but a checkpoint needs {}", folder, readable(*free),
                                readable(needed)));
}

void write_checkpoint_files(const std::string& folder, const ModelConfig& config, const Tokenizer& tokenizer,
                            const Snapshot& snapshot) {
    if (snapshot.shape().has_masters()) {
        write_hugging_face_model(folder + "/model.safetensors", snapshot.table(), snapshot.masters());
        write_hugging_face_metadata(folder, config, tokenizer);
    }
    if (snapshot.shape().has_optimizer()) write_optimizer_state(folder, snapshot);
}

namespace {

// The optimizer state that one process wrote.
class OptimizerFile {
public:
    OptimizerFile(const std::string& folder, int rank) : file_(folder + "/" + optimizer_file(rank)) {}

    const std::string& path() const { return file_.path(); }
    const SafetensorsFile& file() const { return file_; }
    int world_size() const {
        const std::string text = metadata("world_size");
        int world_size = 0;
        const auto end = std::from_chars(text.data(), text.data() + text.size(), world_size);
        CHECK(end.ec == std::errc() && end.ptr == text.data() + text.size() && world_size > 0 &&
                  world_size <= 1 << 16,
              "{}: its metadata has the world_size '{}'; expected a number of processes", path(),
              printable(text));
        return world_size;
    }
    // The elements of a tensor that this file holds under a name, possibly none. UsageError if the entry is
    // not a float array of that many elements.
    std::vector<Range> ranges(const std::string& name, const Tensor& tensor) const {
        if (!file_.contains(name)) return {};
        const auto& entry = file_.at(name);
        std::vector<Range> ranges = {{0, tensor.unpadded_elements}};
        std::vector<size_t> shape = unpadded_shape(tensor);
        if (const std::string text = metadata(tensor.name); !text.empty()) {
            ranges = ranges_of(path(), tensor.name, text, tensor.unpadded_elements);
            shape = {0};
            for (const Range& range : ranges) shape[0] += range.end - range.begin;
        }
        CHECK(entry.dtype == "F32" && entry.shape == shape,
              "{}: {} does not have this model's shape; expected the state of the same optimizer and model",
              path(), name);
        return ranges;
    }

private:
    std::string metadata(const std::string& key) const {
        const auto found = file_.metadata().find(key);
        return found == file_.metadata().end() ? "" : found->second;
    }
    SafetensorsFile file_;
};

}  // namespace

void read_optimizer_state(const std::string& folder, const TensorTable& table,
                          const std::vector<std::string>& buffers,
                          const std::function<void(const std::string& buffer, const float* values)>& take) {
    std::vector<OptimizerFile> files;
    files.emplace_back(folder, 0);
    for (int rank = 1; rank < files[0].world_size(); rank++) files.emplace_back(folder, rank);
    size_t expected = 0, held = 0;
    for (const std::string& buffer : buffers) {
        for (const Tensor& t : table.tensors()) {
            const std::string name = optimizer_tensor(table, buffer, t);
            if (name.empty()) continue;
            size_t elements = 0;
            for (const OptimizerFile& file : files) {
                for (const Range& range : file.ranges(name, t)) elements += range.end - range.begin;
                expected += file.file().contains(name);
            }
            CHECK(elements == t.unpadded_elements,
                  "{}: has {} of the {} elements of {}; expected the state of the same optimizer and model",
                  files[0].path(), elements, t.unpadded_elements, name);
        }
    }
    for (const OptimizerFile& file : files) held += file.file().tensors().size();
    CHECK(held == expected, "{}: holds {} tensors, but the optimizer of this run has {}", files[0].path(),
          held, expected);
    std::vector<float> values(table.elements(), 0.0f);
    for (const std::string& buffer : buffers) {
        for (const Tensor& t : table.tensors()) {
            const std::string name = optimizer_tensor(table, buffer, t);
            for (const OptimizerFile& file : files) {
                size_t first = 0;
                for (const Range& range : file.ranges(name, t)) {
                    const size_t count = range.end - range.begin;
                    file.file().floats(name, std::span(values).subspan(t.offset + range.begin, count), first);
                    first += count;
                }
            }
        }
        take(buffer, values.data());
    }
}
