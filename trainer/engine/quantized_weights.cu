#include <vector>

#include "kernels/quantize.cuh"
#include "trainer/engine/model.h"
#include "trainer/engine/quantized_weights.h"

template <class T>
void quantize_weights(Model<T>& model) {
    for (const Tensor& tensor : model.table().tensors()) {
        if (!tensor.int8) continue;
        std::vector<float> values = model.parameter(tensor);
        const size_t rows = tensor.shape[0], columns = tensor.shape[1];
        simt::DeviceBuffer<float> weight(rows * columns), scales(rows);
        simt::DeviceBuffer<int8_t> quantized(rows * columns);
        simt::copy_to_device(weight.data(), values.data(), weight.bytes(), nullptr);
        quantize(quantized.data(), scales.data(), weight.data(), rows, static_cast<int>(columns), nullptr);
        dequantize(weight.data(), quantized.data(), scales.data(), rows, static_cast<int>(columns), nullptr);
        simt::copy_to_host(values.data(), weight.data(), weight.bytes(), nullptr);
        simt::stream_synchronize(nullptr);
        model.set_parameter(tensor, values);
    }
}

template void quantize_weights(Model<float>&);
template void quantize_weights(Model<bfloat16>&);
