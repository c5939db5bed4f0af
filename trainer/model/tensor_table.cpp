#include "trainer/model/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/simt/target.h"
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

struct TensorTable::Row {
    Kind kind;
    const char* name;
    std::vector<size_t> shape;
    bool from_matmul;
    Init init;
};

TensorTable::TensorTable(const GPT2Config& config, int world_size) : world_size_(world_size) {
    config.check();
    CHECK(world_size > 0, "{} processes; expected 1 or more", world_size);
    const size_t C = static_cast<size_t>(config.C), V = static_cast<size_t>(config.V),
                 Vp = static_cast<size_t>(config.Vp()), context = static_cast<size_t>(config.context);
    add({Kind::wte, "transformer.wte.weight", {Vp, C}, true, Init::normal}, -1, 0, V);
    add({Kind::wpe, "transformer.wpe.weight", {context, C}, false, Init::normal}, -1, 0);
    end_group(0);
    for (int l = 0; l < config.L; l++) {
        add_block(C, l);
        end_group(1 + l);
    }
    add({Kind::lnfw, "transformer.ln_f.weight", {C}, false, Init::ones}, -1, 1 + config.L);
    add({Kind::lnfb, "transformer.ln_f.bias", {C}, false, Init::zeros}, -1, 1 + config.L);
    end_group(1 + config.L);
    find_stretches();
}

void TensorTable::add_block(size_t C, int layer) {
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
    for (const Row& row : rows) add(row, layer, 1 + layer);
}

void TensorTable::add(const Row& row, int layer, int group, size_t unpadded_rows) {
    Tensor t{.kind = row.kind,
             .layer = layer,
             .name = fmt::format(fmt::runtime(row.name), layer),
             .shape = row.shape,
             .elements = 1,
             .unpadded_elements = 0,
             .weight_decay = row.shape.size() >= 2,
             .from_matmul = row.from_matmul,
             .init = row.init,
             .group = group,
             .offset = elements_};
    for (const size_t n : row.shape) t.elements *= n;
    t.unpadded_elements = unpadded_rows > 0 ? t.elements / row.shape[0] * unpadded_rows : t.elements;
    parameters_ += t.unpadded_elements;
    elements_ += simt::ceil_div(t.elements + gap, alignment) * alignment;
    tensors_.push_back(std::move(t));
}

// Pads the group until it divides into one aligned part for each process, and cuts it into buckets.
void TensorTable::end_group(int group) {
    const size_t unit = alignment * static_cast<size_t>(world_size_);
    size_t begin = buckets_.empty() ? 0 : buckets_.back().offset + buckets_.back().elements;
    elements_ = simt::ceil_div(elements_, unit) * unit;
    const size_t group_size = elements_ - begin,
                 pieces = simt::ceil_div(group_size, largest_bucket(world_size_, group_size));
    const size_t piece = simt::ceil_div(group_size, pieces * unit) * unit;
    for (; begin < elements_; begin += piece)
        buckets_.push_back({begin, std::min(piece, elements_ - begin), group});
}

void TensorTable::find_stretches() {
    for (size_t i = 0; i < tensors_.size(); i++) {
        const Tensor& t = tensors_[i];
        Stretch* const last = stretches_.empty() ? nullptr : &stretches_.back();
        const bool follows = last && last->offset + last->elements == t.offset &&
                             last->weight_decay == t.weight_decay && last->from_matmul == t.from_matmul;
        if (follows) last->elements += t.elements;
        else stretches_.push_back({t.offset, t.elements, t.offset, i, t.weight_decay, t.from_matmul});
    }
}

// The order in memory is wte, wpe, the kinds qkvw to fcprojb layer by layer, then the final layernorm.
const Tensor& TensorTable::at(Kind kind, int layer) const {
    const auto number = [](Kind k) { return static_cast<size_t>(k); };
    const size_t in_block = number(Kind::fcprojb) - number(Kind::qkvw) + 1;
    size_t index = number(kind);
    if (layer >= 0) index += static_cast<size_t>(layer) * in_block;
    else if (kind >= Kind::lnfw) index = tensors_.size() - 1 - (number(Kind::lnfb) - number(kind));
    if (index >= tensors_.size() || tensors_[index].kind != kind || tensors_[index].layer != layer)
        throw Error(fmt::format("no parameter of kind {} in layer {}", static_cast<int>(kind), layer));
    return tensors_[index];
}
