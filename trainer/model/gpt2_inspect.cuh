// gpt2_inspect.cuh: single tensors, norms and checksums, for --log-layer-norms, --check-replicas and tests
#pragma once
#include "kernels/checksum.cuh"
#include "kernels/global_norm.cuh"
#include "system/error.h"
#include "trainer/model/gpt2.h"

template <class T>
std::vector<float> GPT2<T>::parameter(const Tensor& tensor) {
    await_parameters();
    if (keeps_master_shard()) return to_host(params_ + tensor.offset, tensor.elements);
    return to_host(masters_ + tensor.offset, tensor.elements);
}

template <class T>
void GPT2<T>::set_parameter(const Tensor& tensor, const std::vector<float>& values) {
    CHECK(values.size() == tensor.elements || values.size() == tensor.unpadded_elements,
          "{}: {} values; expected {}", tensor.name, values.size(), tensor.unpadded_elements);
    await_parameters();
    float* master = whole_masters() + tensor.offset;
    simt::fill_zero(master, tensor.elements * sizeof(float), stream_);
    simt::copy_to_device(master, values.data(), values.size() * sizeof(float), stream_);
    adopt_masters(tensor.offset, tensor.elements);
    simt::stream_synchronize(stream_);
}

template <class T>
std::vector<float> GPT2<T>::gradient(const Tensor& tensor) const {
    return to_host(grads_ + tensor.offset, tensor.elements);
}

template <class T>
SquaredNorms GPT2<T>::squared_norms() {
    await_parameters();
    const std::vector<Tensor>& tensors = table_.tensors();
    std::vector<Stretch> pieces;
    if (options_.sharded()) pieces = table_.shard_of_tensors(options_.rank);
    else
        for (size_t i = 0; i < tensors.size(); i++)
            pieces.push_back({tensors[i].offset, tensors[i].elements, tensors[i].offset, i, false, false});
    for (size_t i = 0; i < pieces.size(); i++) {
        const Stretch& p = pieces[i];
        const float* master = masters_ + (keeps_master_shard() ? p.state_offset : p.offset);
        global_norm_squared(work_.part_norms + 2 * i, work_.norm, grads_ + p.offset, p.elements, stream_);
        global_norm_squared(work_.part_norms + 2 * i + 1, work_.norm, master, p.elements, stream_);
    }
    const std::vector<float> squares = to_host(work_.part_norms, 2 * pieces.size());
    std::vector<double> sums(2 * tensors.size(), 0.0);  // of gradients, then of weights
    for (size_t i = 0; i < pieces.size(); i++) {
        sums[pieces[i].tensor] += static_cast<double>(squares[2 * i]);
        sums[tensors.size() + pieces[i].tensor] += static_cast<double>(squares[2 * i + 1]);
    }
    if (options_.sharded()) sums = sum_over_processes(*communicator_, sums);
    SquaredNorms norms;
    const auto weights = sums.begin() + static_cast<ptrdiff_t>(tensors.size());
    norms.gradients.assign(sums.begin(), weights);
    const double weight = begun_ > 0 ? numbers_[(begun_ - 1) % kept_steps].gradient_weight : 1;
    for (auto& norm : norms.gradients) norm = static_cast<float>(norm * weight * weight);
    norms.weights.assign(weights, sums.end());
    return norms;
}

template <class T>
uint64_t GPT2<T>::checksum() {
    await_parameters();
    std::vector<unsigned long long> sums(table_.tensors().size(), 0);
    const simt::DeviceBuffer<unsigned long long> device(sums.size());
    simt::fill_zero(device.data(), device.bytes(), stream_);
    for (size_t i = 0; i < sums.size(); i++) {
        const Tensor& t = table_.tensors()[i];
        add_checksum(device.data() + i, params_ + t.offset, t.elements, stream_);
    }
    simt::copy_to_host(sums.data(), device.data(), device.bytes(), stream_);
    simt::stream_synchronize(stream_);
    uint64_t all = 0;
    for (const unsigned long long sum : sums) all = all * 31 + sum;
    return all;
}

template <class T>
std::vector<float> GPT2<T>::activation(const std::string& name, int l) const {
    const size_t N = rows(), C = channels();
    if (name == "encoded") return to_host(encoded_, N * C);
    if (name == "lnf") return to_host(lnf_.out, N * C);
    if (name == "logits" && head_in_chunks())
        throw Error(
            fmt::format("logits of {} chunks are not kept; expected one chunk", options_.head_chunks));
    if (name == "logits") return to_host(logits_, N * size(config_.Vp()));
    const Block& a = blocks_.at(size(l));
    if (name == "ln1") return to_host(a.ln1.out, N * C);
    if (name == "qkv") return to_host(a.qkv, N * 3 * C);
    if (name == "att") return to_host(a.att, N * C);
    if (name == "residual2") return to_host(a.residual2, N * C);
    if (name == "ln2") return to_host(a.ln2.out, N * C);
    if (name == "fch") return to_host(a.fch, N * 4 * C);
    if (name == "fch_gelu") return to_host(a.fch_gelu, N * 4 * C);
    if (name == "residual3") return to_host(a.residual3, N * C);
    throw Error("no activation is called " + name);
}

template <class T>
std::vector<float> GPT2<T>::losses() const {
    return to_host(losses_, rows());
}
