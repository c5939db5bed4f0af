#include "trainer/engine/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/simt/host_device.h"
#include "system/error.h"

namespace {

// Each tensor starts at a multiple of this many elements: 256 bytes of bf16, more than any vector load
// needs.
constexpr size_t alignment = 128;
// In checked builds a gap follows each tensor: a read past its end gives NaN, and a write past it damages
// no other tensor.
constexpr size_t gap = simt::checked ? alignment : 0;
// A larger group is communicated in pieces, so that updating the first piece need not wait for the last.
// With many processes pieces are larger, since a ring's latency grows with their number (Megatron-LM uses
// max(40M, 1M * N)). No group has more than 256 pieces: the plan of an absurdly large model would
// otherwise take long.
size_t largest_bucket(int world_size, size_t group) {
    return std::max(std::max<size_t>(8, static_cast<size_t>(world_size)) << 20,
                    simt::ceil_div(group, size_t{256}));
}

}  // namespace

TensorTable::TensorTable(int blocks, const TableLayout& layout)
    : groups_(static_cast<size_t>(blocks) + 2), layout_(layout) {
    CHECK(layout.world_size > 0, "{} processes; expected 1 or more", layout.world_size);
}

TensorId TensorTable::add(size_t group, Row row) {
    const bool whole = layout_.whole_matrices && row.role == Role::matrix;
    if (whole && !row.joined) end_bucket();
    for (; group_ < group; group_++) end_bucket();
    if (row.joined) elements_ = tensors_.back().offset + tensors_.back().elements;
    Tensor t{std::move(row), 1, 0, false, group, elements_};
    for (const size_t n : t.shape) t.elements *= n;
    t.unpadded_elements = t.unpadded_rows > 0 ? t.elements / t.shape[0] * t.unpadded_rows : t.elements;
    t.weight_decay = t.shape.size() >= 2;
    parameters_ += t.unpadded_elements;
    elements_ += simt::ceil_div(t.elements + gap, alignment) * alignment;
    if (whole && t.joined) buckets_.back().elements = elements_ - buckets_.back().offset;
    else if (whole) buckets_.push_back({t.offset, elements_ - t.offset, group, second_elements_, 0});
    tensors_.push_back(std::move(t));
    return tensors_.size() - 1;
}

void TensorTable::complete() {
    for (; group_ < groups_; group_++) end_bucket();
    choose_owners();
    find_ranges();
}

// Pads the tensors since the last bucket until they divide into one aligned part for each process, and cuts
// them into buckets.
void TensorTable::end_bucket() {
    const size_t unit = alignment * static_cast<size_t>(layout_.world_size);
    size_t begin = buckets_.empty() ? 0 : buckets_.back().offset + buckets_.back().elements;
    if (elements_ == begin) return;  // no tensors
    const size_t group_size = simt::ceil_div(elements_ - begin, unit) * unit,
                 pieces = simt::ceil_div(group_size, largest_bucket(layout_.world_size, group_size));
    const size_t piece = simt::ceil_div(group_size, pieces * unit) * unit;
    elements_ = begin + group_size;
    for (; begin < elements_; begin += piece) {
        const size_t size = std::min(piece, elements_ - begin);
        buckets_.push_back({begin, size, group_, second_elements_});
        second_elements_ += size;
    }
}

// Operations of orthogonalising the tensor's matrices (kernels/gemm/orthogonalise.h), up to a factor.
static double work_of(const Tensor& t) {
    const double rows = static_cast<double>(t.rows_of_matrix()), columns = static_cast<double>(t.shape[1]),
                 n = std::min(rows, columns), k = std::max(rows, columns);
    return static_cast<double>(t.matrices) * n * n * (2 * k + n);
}

// The matrices, the one with the most work first, each to the process that has the least so far.
void TensorTable::choose_owners() {
    std::vector<std::pair<double, Bucket*>> matrices;
    auto bucket = buckets_.begin();
    for (const Tensor& t : tensors_) {
        if (!updates_whole(t)) continue;
        if (t.joined) {
            matrices.back().first += work_of(t);
            continue;
        }
        while (bucket->offset < t.offset) bucket++;
        matrices.emplace_back(work_of(t), &*bucket);
    }
    std::stable_sort(matrices.begin(), matrices.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    loads_.assign(static_cast<size_t>(layout_.world_size), 0.0);
    for (const auto& [work, of] : matrices) {
        const auto least = std::min_element(loads_.begin(), loads_.end());
        *least += work;
        of->owner = static_cast<int>(least - loads_.begin());
    }
}

size_t TensorTable::state_elements(size_t buffer, bool sharded) const {
    const auto world_size = static_cast<size_t>(layout_.world_size);
    if (!sharded) return buffer == 0 ? elements_ : second_elements_;
    std::vector<size_t> owned(world_size);
    for (const Bucket& b : buckets_) {
        if (buffer == 0 && b.is_whole()) owned[static_cast<size_t>(b.owner)] += b.elements;
    }
    return second_elements_ / world_size + *std::max_element(owned.begin(), owned.end());
}

size_t TensorTable::second_offset(size_t offset) const {
    const auto after =
        std::upper_bound(buckets_.begin(), buckets_.end(), offset,
                         [](size_t wanted, const Bucket& bucket) { return wanted < bucket.offset; });
    const Bucket& bucket = *std::prev(after);
    return bucket.second_offset + offset - bucket.offset;
}

void TensorTable::find_ranges() {
    for (TensorId id = 0; id < tensors_.size(); id++) {
        const Tensor& t = tensors_[id];
        FlatRange* const last = ranges_.empty() ? nullptr : &ranges_.back();
        const auto agrees = [&](const FlatRange& r) {
            const Role role = tensors_[r.tensor].role;
            return r.offset + r.elements == t.offset && r.weight_decay == t.weight_decay &&
                   r.from_matmul == t.from_matmul &&
                   (!layout_.whole_matrices || (role == t.role && role != Role::matrix));
        };
        if (last && agrees(*last)) last->elements += t.elements;
        else
            ranges_.push_back(
                {t.offset, t.elements, t.offset, id, t.weight_decay, t.from_matmul, second_offset(t.offset)});
    }
}

std::array<size_t, 2> TensorTable::matrix(TensorId id) const {
    const std::vector<size_t>& shape = tensors_[id].shape;
    std::array<size_t, 2> size = {shape[0], shape.size() > 1 ? shape[1] : 1};
    while (++id < tensors_.size() && tensors_[id].joined) size[0] += tensors_[id].shape[0];
    return size;
}

const Tensor& TensorTable::named(const std::string& name) const {
    const auto found =
        std::find_if(tensors_.begin(), tensors_.end(), [&](const Tensor& t) { return t.name == name; });
    if (found == tensors_.end()) throw Error("the model has no tensor " + name);
    return *found;
}

std::vector<size_t> Tensor::shape_in_file() const {
    std::vector<size_t> in_file = shape;
    in_file[0] = in_file[0] * unpadded_elements / elements;
    if (transposed) std::swap(in_file[0], in_file[1]);
    return in_file;
}

std::vector<FlatRange> TensorTable::shard_of(const std::vector<FlatRange>& ranges, int rank) const {
    const size_t world_size = static_cast<size_t>(layout_.world_size), r = static_cast<size_t>(rank);
    // The elements of a bucket that the process keeps, and where they lie in its state.
    const auto kept_of = [&](const Bucket& b) {
        return b.is_whole() ? (b.owner == rank ? b.elements : 0) : b.elements / world_size;
    };
    std::vector<size_t> kept_at;
    size_t kept = 0;
    for (const Bucket& b : buckets_) kept_at.push_back(std::exchange(kept, kept + kept_of(b)));
    std::vector<FlatRange> parts;
    size_t first = 0;  // the first bucket that reaches into the range
    for (const FlatRange& whole : ranges) {
        const size_t end_of_whole = whole.offset + whole.elements;
        while (first < buckets_.size() && buckets_[first].offset + buckets_[first].elements <= whole.offset)
            first++;
        for (size_t j = first; j < buckets_.size() && buckets_[j].offset < end_of_whole; j++) {
            const Bucket& bucket = buckets_[j];
            const size_t part = kept_of(bucket),
                         part_begin = bucket.offset + (bucket.is_whole() ? 0 : r * part);
            const size_t begin = std::max(whole.offset, part_begin),
                         end = std::min(end_of_whole, part_begin + part);
            if (begin >= end) continue;
            FlatRange& own = parts.emplace_back(whole);
            own.offset = begin, own.elements = end - begin;
            own.state_offset = kept_at[j] + begin - part_begin;
            own.second_offset = bucket.second_offset / world_size + begin - part_begin;
        }
    }
    return parts;
}

std::vector<FlatRange> TensorTable::whole_tensors() const {
    std::vector<FlatRange> whole;
    for (size_t i = 0; i < tensors_.size(); i++) {
        const Tensor& t = tensors_[i];
        whole.push_back({t.offset, t.unpadded_elements, t.offset, i, t.weight_decay, t.from_matmul,
                         second_offset(t.offset)});
    }
    return whole;
}
