// parameters.cuh: initial weights, and the state from which training resumes
#pragma once
#include <algorithm>
#include <utility>

#include "kernels/checksum.cuh"
#include "kernels/elementwise.cuh"
#include "kernels/random.cuh"
#include "system/error.h"
#include "trainer/engine/parameters.h"

// Philox's purpose word for the first tensor; the following tensors count up from it. Other uses of the
// same seed have other words (sampling.h, permutation.h).
inline constexpr uint32_t weights_purpose = 1u << 16;

template <class T>
Parameters<T>::Parameters(const TensorTable& table, Context& context, Gradients& gradients, Memory& memory)
    : table_(table), context_(context), gradients_(gradients), gathered_(table.groups(), 0) {
    memory.parameters.reserve(values_, table.elements());
    if (std::is_same_v<T, float>) return;
    memory.masters.reserve(masters_, table.state_elements(0, sharded_masters()));
}

template <class T>
void Parameters<T>::initialise() {
    if constexpr (std::is_same_v<T, float>) masters_ = values_;
    uint32_t purpose = weights_purpose;
    // The padding after each bucket is zeroed too, since checkpoints and collectives copy it.
    simt::fill_zero(whole_masters(), table_.elements() * sizeof(float), context_.stream);
    for (const Tensor& t : table_.tensors()) {
        float* const values = whole_masters() + t.offset;
        if (t.init.std > 0)
            normal_init(values, t.unpadded_elements, 0.0f, t.init.std, context_.options.seed, purpose,
                        context_.stream);
        else if (t.init.value != 0) fill(values, t.init.value, t.elements, context_.stream);
        purpose++;
    }
    adopt_masters(0, table_.elements());
}

template <class T>
template <class E>
Collective Parameters<T>::gathering(const Bucket& b, E* values) {
    constexpr Collective::Element element = std::is_same_v<E, float> ? Collective::fp32 : Collective::bf16;
    if (b.is_whole()) return {Collective::broadcast, values + b.offset, b.elements, element, b.owner};
    return {Collective::all_gather, values + b.offset, b.elements, element};
}

template <class T>
void Parameters<T>::gather() {
    context_.operation("send parameters");
    for (const Bucket& b : table_.buckets())
        gathered_[b.group] = context_.communicator->begin(gathering(b, values_), context_.stream);
}

template <class T>
void Parameters<T>::await(size_t group) {
    if (gathered_[group] == 0) return;
    context_.operation("wait for parameters");
    context_.communicator->wait(std::exchange(gathered_[group], 0), context_.stream);
}

template <class T>
void Parameters<T>::await_all() {
    for (size_t group = 0; group < gathered_.size(); group++) await(group);
}

template <class T>
Communicator::Ticket Parameters<T>::latest() const {
    return *std::max_element(gathered_.begin(), gathered_.end());
}

template <class T>
void Parameters<T>::adopt_masters(size_t offset, size_t elements) {
    if constexpr (!std::is_same_v<T, float>)
        convert(values_ + offset, whole_masters() + offset, elements, context_.stream);
    if (!sharded_masters()) return;
    for (const FlatRange& r : gradients_.updated()) {
        const size_t begin = std::max(r.offset, offset),
                     end = std::min(r.offset + r.elements, offset + elements);
        if (begin < end)
            simt::copy_on_device(masters(r) + (begin - r.offset), whole_masters() + begin,
                                 (end - begin) * sizeof(float), context_.stream);
    }
}

template <class T>
void Parameters<T>::read_masters(float* host) {
    await_all();
    if (sharded_masters()) {
        for (const FlatRange& r : gradients_.updated())
            simt::copy_on_device(whole_masters() + r.offset, masters(r), r.elements * sizeof(float),
                                 context_.stream);
        Communicator::Ticket gathered = 0;
        for (const Bucket& b : table_.buckets())
            gathered = context_.communicator->begin(gathering(b, whole_masters()), context_.stream);
        context_.communicator->wait(gathered, context_.stream);
    }
    if (host) simt::copy_to_host(host, whole_masters(), table_.elements() * sizeof(float), context_.stream);
    simt::stream_synchronize(context_.stream);
}

template <class T>
void Parameters<T>::write_masters(const float* host) {
    await_all();
    simt::copy_to_device(whole_masters(), host, table_.elements() * sizeof(float), context_.stream);
    adopt_masters(0, table_.elements());
    simt::stream_synchronize(context_.stream);
}

template <class T>
std::vector<float> Parameters<T>::read(const Tensor& tensor) {
    await_all();
    if (sharded_masters()) return to_host(values_ + tensor.offset, tensor.elements, context_.stream);
    return to_host(masters_ + tensor.offset, tensor.elements, context_.stream);
}

template <class T>
void Parameters<T>::write(const Tensor& tensor, std::span<const float> values) {
    CHECK(values.size() == tensor.elements || values.size() == tensor.unpadded_elements,
          "{}: {} values; expected {}", tensor.name, values.size(), tensor.unpadded_elements);
    await_all();
    float* const master = whole_masters() + tensor.offset;
    simt::fill_zero(master, tensor.elements * sizeof(float), context_.stream);
    simt::copy_to_device(master, values.data(), values.size_bytes(), context_.stream);
    adopt_masters(tensor.offset, tensor.elements);
    simt::stream_synchronize(context_.stream);
}

template <class T>
SquaredNorms Parameters<T>::squared_norms(double gradient_weight) {
    await_all();
    const ModelOptions& o = context_.options;
    const std::vector<Tensor>& tensors = table_.tensors();
    std::vector<FlatRange> pieces;
    if (o.sharded()) pieces = table_.shard_of_tensors(o.rank);
    else
        for (TensorId id = 0; id < tensors.size(); id++)
            pieces.push_back(
                {tensors[id].offset, tensors[id].elements, tensors[id].offset, id, false, false});
    for (size_t i = 0; i < pieces.size(); i++) {
        const FlatRange& p = pieces[i];
        gradients_.squared_norm(gradients_.norms() + 2 * i, gradients_.flat() + p.offset, p.elements);
        gradients_.squared_norm(gradients_.norms() + 2 * i + 1, masters(p), p.elements);
    }
    const std::vector<float> squares = to_host(gradients_.norms(), 2 * pieces.size(), context_.stream);
    std::vector<double> sums(2 * tensors.size(), 0.0);  // of gradients, then of weights
    for (size_t i = 0; i < pieces.size(); i++) {
        sums[pieces[i].tensor] += static_cast<double>(squares[2 * i]);
        sums[tensors.size() + pieces[i].tensor] += static_cast<double>(squares[2 * i + 1]);
    }
    if (o.sharded()) sums = sum_over_processes(*context_.communicator, sums);
    SquaredNorms norms;
    const auto weights = sums.begin() + static_cast<ptrdiff_t>(tensors.size());
    norms.gradients.assign(sums.begin(), weights);
    for (float& norm : norms.gradients) norm = static_cast<float>(norm * gradient_weight * gradient_weight);
    norms.weights.assign(weights, sums.end());
    return norms;
}

template <class T>
uint64_t Parameters<T>::checksum() {
    await_all();
    std::vector<unsigned long long> sums(table_.tensors().size(), 0);
    const simt::DeviceBuffer<unsigned long long> device(sums.size());
    simt::fill_zero(device.data(), device.bytes(), context_.stream);
    for (TensorId id = 0; id < sums.size(); id++) {
        const Tensor& t = table_[id];
        add_checksum(device.data() + id, values_ + t.offset, t.elements, context_.stream);
    }
    simt::copy_to_host(sums.data(), device.data(), device.bytes(), context_.stream);
    simt::stream_synchronize(context_.stream);
    uint64_t all = 0;
    for (const unsigned long long sum : sums) all = all * 31 + sum;
    return all;
}
