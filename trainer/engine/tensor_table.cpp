#include "trainer/engine/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>

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

TensorTable::TensorTable(int blocks, int world_size)
    : groups_(static_cast<size_t>(blocks) + 2), world_size_(world_size) {
    CHECK(world_size > 0, "{} processes; expected 1 or more", world_size);
}

TensorId TensorTable::add(size_t group, Row row) {
    for (; group_ < group; group_++) end_group();
    Tensor t{std::move(row), 1, 0, false, group, elements_};
    for (const size_t n : t.shape) t.elements *= n;
    t.unpadded_elements = t.unpadded_rows > 0 ? t.elements / t.shape[0] * t.unpadded_rows : t.elements;
    t.weight_decay = t.shape.size() >= 2;
    parameters_ += t.unpadded_elements;
    elements_ += simt::ceil_div(t.elements + gap, alignment) * alignment;
    tensors_.push_back(std::move(t));
    return tensors_.size() - 1;
}

void TensorTable::complete() {
    for (; group_ < groups_; group_++) end_group();
    find_ranges();
}

// Pads the group until it divides into one aligned part for each process, and cuts it into buckets.
void TensorTable::end_group() {
    const size_t unit = alignment * static_cast<size_t>(world_size_);
    size_t begin = buckets_.empty() ? 0 : buckets_.back().offset + buckets_.back().elements;
    elements_ = simt::ceil_div(elements_, unit) * unit;
    if (elements_ == begin) return;  // a group without tensors
    const size_t group_size = elements_ - begin,
                 pieces = simt::ceil_div(group_size, largest_bucket(world_size_, group_size));
    const size_t piece = simt::ceil_div(group_size, pieces * unit) * unit;
    for (; begin < elements_; begin += piece)
        buckets_.push_back({begin, std::min(piece, elements_ - begin), group_});
}

void TensorTable::find_ranges() {
    for (TensorId id = 0; id < tensors_.size(); id++) {
        const Tensor& t = tensors_[id];
        FlatRange* const last = ranges_.empty() ? nullptr : &ranges_.back();
        const bool follows = last && last->offset + last->elements == t.offset &&
                             last->weight_decay == t.weight_decay && last->from_matmul == t.from_matmul;
        if (follows) last->elements += t.elements;
        else ranges_.push_back({t.offset, t.elements, t.offset, id, t.weight_decay, t.from_matmul});
    }
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
    const size_t world_size = static_cast<size_t>(world_size_), r = static_cast<size_t>(rank);
    std::vector<FlatRange> parts;
    size_t first = 0;  // the first bucket that reaches into the range
    for (const FlatRange& whole : ranges) {
        const size_t end_of_whole = whole.offset + whole.elements;
        while (first < buckets_.size() && buckets_[first].offset + buckets_[first].elements <= whole.offset)
            first++;
        for (size_t j = first; j < buckets_.size() && buckets_[j].offset < end_of_whole; j++) {
            const Bucket& bucket = buckets_[j];
            const size_t part = bucket.elements / world_size, part_begin = bucket.offset + r * part;
            const size_t begin = std::max(whole.offset, part_begin),
                         end = std::min(end_of_whole, part_begin + part);
            if (begin >= end) continue;
            FlatRange& own = parts.emplace_back(whole);
            own.offset = begin, own.elements = end - begin;
            own.state_offset = bucket.offset / world_size + begin - part_begin;
        }
    }
    return parts;
}

std::vector<FlatRange> TensorTable::shard_of_tensors(int rank) const {
    std::vector<FlatRange> whole;
    for (size_t i = 0; i < tensors_.size(); i++) {
        const Tensor& t = tensors_[i];
        whole.push_back({t.offset, t.unpadded_elements, t.offset, i, t.weight_decay, t.from_matmul});
    }
    return shard_of(whole, rank);
}
