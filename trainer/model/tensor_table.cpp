#include "trainer/model/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/simt/target.h"
#include "system/error.h"

namespace {

// Every tensor starts on a multiple of this many elements: 256 bytes of bf16, more than any vector load
// needs.
constexpr size_t alignment = 128;
// In checked builds a gap behind each tensor: what runs over its end reads NaN, and spoils no other tensor.
constexpr size_t gap = simt::checked ? alignment : 0;
// A group of more elements than this is communicated in pieces, so that the update of the first need not wait
// for the last. Larger ones for many processes, since a ring's latency grows with their number (Megatron-LM
// has max(40M, 1M * N)).
// A group beyond any model that was ever trained has 256 pieces, so that a plan for it takes no time.
size_t largest_bucket(int world_size, size_t group) {
    return std::max(std::max<size_t>(8, static_cast<size_t>(world_size)) << 20,
                    simt::ceil_div(group, size_t{256}));
}

struct Row {
    Kind kind;
    const char* name;
    std::vector<size_t> shape;
    bool from_matmul;
    Init init;
};

}  // namespace

TensorTable::TensorTable(const GPT2Config& config, int world_size) : world_size_(world_size) {
    config.check();
    CHECK(world_size > 0, "{} processes; expected 1 or more", world_size);
    const size_t C = static_cast<size_t>(config.C), Vp = static_cast<size_t>(config.Vp()),
                 context = static_cast<size_t>(config.context);
    const auto add = [&](const Row& row, int layer, int group) {
        Tensor t{row.kind,
                 layer,
                 fmt::format(fmt::runtime(row.name), layer),
                 row.shape,
                 1,
                 0,
                 row.shape.size() >= 2,
                 row.from_matmul,
                 row.init,
                 group,
                 elements_};
        for (const size_t n : row.shape) t.elements *= n;
        t.unpadded_elements = row.kind == Kind::wte ? static_cast<size_t>(config.V) * C : t.elements;
        parameters_ += t.unpadded_elements;
        elements_ += simt::ceil_div(t.elements + gap, alignment) * alignment;
        tensors_.push_back(std::move(t));
    };

    // A group ends where its parts, one for each process, are aligned.
    const size_t unit = alignment * static_cast<size_t>(world_size);
    const auto end_group = [&](int group) {
        size_t begin = buckets_.empty() ? 0 : buckets_.back().offset + buckets_.back().elements;
        elements_ = simt::ceil_div(elements_, unit) * unit;
        const size_t group_size = elements_ - begin,
                     pieces = simt::ceil_div(group_size, largest_bucket(world_size, group_size));
        const size_t piece = simt::ceil_div(group_size, pieces * unit) * unit;
        for (; begin < elements_; begin += piece)
            buckets_.push_back({begin, std::min(piece, elements_ - begin), group});
    };

    add({Kind::wte, "transformer.wte.weight", {Vp, C}, true, Init::normal}, -1, 0);
    add({Kind::wpe, "transformer.wpe.weight", {context, C}, false, Init::normal}, -1, 0);
    end_group(0);
    for (int l = 0; l < config.L; l++) {
        const Row rows[] = {
            {Kind::qkvw, "transformer.h.{}.attn.c_attn.weight", {3 * C, C}, true, Init::normal},
            {Kind::attprojw, "transformer.h.{}.attn.c_proj.weight", {C, C}, true, Init::residual_normal},
            {Kind::fcw, "transformer.h.{}.mlp.c_fc.weight", {4 * C, C}, true, Init::normal},
            {Kind::fcprojw, "transformer.h.{}.mlp.c_proj.weight", {C, 4 * C}, true, Init::residual_normal},
            {Kind::ln1w, "transformer.h.{}.ln_1.weight", {C}, false, Init::ones},
            {Kind::ln1b, "transformer.h.{}.ln_1.bias", {C}, false, Init::zeros},
            {Kind::qkvb, "transformer.h.{}.attn.c_attn.bias", {3 * C}, false, Init::zeros},
            {Kind::attprojb, "transformer.h.{}.attn.c_proj.bias", {C}, false, Init::zeros},
            {Kind::ln2w, "transformer.h.{}.ln_2.weight", {C}, false, Init::ones},
            {Kind::ln2b, "transformer.h.{}.ln_2.bias", {C}, false, Init::zeros},
            {Kind::fcb, "transformer.h.{}.mlp.c_fc.bias", {4 * C}, false, Init::zeros},
            {Kind::fcprojb, "transformer.h.{}.mlp.c_proj.bias", {C}, false, Init::zeros},
        };
        for (const Row& row : rows) add(row, l, 1 + l);
        end_group(1 + l);
    }
    add({Kind::lnfw, "transformer.ln_f.weight", {C}, false, Init::ones}, -1, 1 + config.L);
    add({Kind::lnfb, "transformer.ln_f.bias", {C}, false, Init::zeros}, -1, 1 + config.L);
    end_group(1 + config.L);

    for (const Tensor& t : tensors_) {
        Stretch* last = stretches_.empty() ? nullptr : &stretches_.back();
        if (last && last->offset + last->elements == t.offset && last->weight_decay == t.weight_decay &&
            last->from_matmul == t.from_matmul) {
            last->elements += t.elements;
        } else {
            stretches_.push_back({t.offset, t.elements, t.weight_decay, t.from_matmul});
        }
    }
}

const Tensor& TensorTable::at(Kind kind, int layer) const {
    const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                    [&](const Tensor& t) { return t.kind == kind && t.layer == layer; });
    if (found == tensors_.end())
        throw Error(fmt::format("no parameter of kind {} in layer {}", static_cast<int>(kind), layer));
    return *found;
}

std::vector<ShardPiece> TensorTable::shard_of(std::span<const Range> ranges, int rank) const {
    const size_t world_size = static_cast<size_t>(world_size_), r = static_cast<size_t>(rank);
    std::vector<ShardPiece> pieces;
    size_t first = 0;  // of the buckets that reach into a range: both stand in the order of their offsets
    for (size_t i = 0; i < ranges.size(); i++) {
        const size_t end_of_range = ranges[i].offset + ranges[i].elements;
        while (first < buckets_.size() &&
               buckets_[first].offset + buckets_[first].elements <= ranges[i].offset)
            first++;
        for (size_t j = first; j < buckets_.size() && buckets_[j].offset < end_of_range; j++) {
            const Bucket& bucket = buckets_[j];
            const size_t part = bucket.elements / world_size, part_begin = bucket.offset + r * part;
            const size_t begin = std::max(ranges[i].offset, part_begin),
                         end = std::min(end_of_range, part_begin + part);
            if (begin < end)
                pieces.push_back({i, begin, end - begin, bucket.offset / world_size + begin - part_begin});
        }
    }
    return pieces;
}

std::vector<ShardPiece> TensorTable::shard_of_tensors(int rank) const {
    std::vector<Range> ranges;
    for (const Tensor& t : tensors_) ranges.push_back({t.offset, t.unpadded_elements});
    return shard_of(ranges, rank);
}

std::vector<ShardPiece> TensorTable::shard_of_stretches(int rank) const {
    std::vector<Range> ranges;
    for (const Stretch& s : stretches_) ranges.push_back({s.offset, s.elements});
    return shard_of(ranges, rank);
}
