// parameters.h: all parameters in one flat buffer of type T, and their fp32 masters in another. With float
// both are the same.
//   With ZeRO-1 each process updates its part, and parameters are gathered while the next forward begins.
#pragma once
#include <type_traits>
#include <vector>

#include "kernels/simt/bfloat16.h"
#include "trainer/engine/arena.h"
#include "trainer/engine/context.h"
#include "trainer/engine/gradients.h"
#include "trainer/engine/norms_by_layer.h"
#include "trainer/engine/tensor_table.h"

template <class T>
class Parameters {
public:
    Parameters(const TensorTable& table, Context& context, Gradients& gradients, Memory& memory);

    // The tensor's parameters on the device; waits until they have arrived.
    T* value(TensorId id) {
        const Tensor& t = table_[id];
        await(t.group);
        return values_ + t.offset;
    }
    float* gradient(TensorId id) const { return gradients_.at(id); }

    // Begins to gather the parameters, each part from the process that updated it, in the order in which
    // forward needs them.
    void gather();
    // How a bucket of `values`, which has the table's layout, comes from those who updated it.
    template <class E>
    static Collective gathering(const Bucket& bucket, E* values);
    void await(size_t group);
    void await_all();
    bool in_flight() const { return latest() != 0; }
    Communicator::Ticket latest() const;  // of the parameters in flight; 0: none are

    void initialise();  // draws the initial weights; call once, when there is memory

    // The parameters and masters of a range, for an update.
    T* values(const FlatRange& r) const { return values_ + r.offset; }
    float* masters(const FlatRange& r) const {
        return masters_ + (sharded_masters() ? r.state_offset : r.offset);
    }

    // The functions below are those of Model.
    void read_masters(float* host);
    void write_masters(const float* host);
    std::vector<float> read(const Tensor& tensor);
    void write(const Tensor& tensor, std::span<const float> values);
    SquaredNorms squared_norms(double gradient_weight);
    uint64_t checksum();

private:
    bool sharded_masters() const { return context_.options.sharded() && !std::is_same_v<T, float>; }
    // The whole fp32 parameters: the masters or, if only a shard of these is kept, the gradients' memory.
    float* whole_masters() const { return sharded_masters() ? gradients_.flat() : masters_; }
    // Copies a range of whole_masters() to the parameters, rounded, and to this process's shard of the
    // masters.
    void adopt_masters(size_t offset, size_t elements);

    const TensorTable& table_;
    Context& context_;
    Gradients& gradients_;
    T* values_ = nullptr;
    float* masters_ = nullptr;
    std::vector<Communicator::Ticket> gathered_;  // by group; 0: the parameters have arrived
};

extern template class Parameters<float>;
extern template class Parameters<bfloat16>;

// `count` elements of the device as floats.
template <class E>
std::vector<float> to_host(const E* device, size_t count, stream_t stream) {
    std::vector<E> raw(count);
    simt::copy_to_host(raw.data(), device, count * sizeof(E), stream);
    simt::stream_synchronize(stream);
    return std::vector<float>(raw.begin(), raw.end());
}
