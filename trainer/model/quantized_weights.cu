#include <vector>

#include "kernels/quantize.cuh"
#include "trainer/model/gpt2.h"
#include "trainer/model/quantized_weights.h"

template <class T>
void quantize_weights(GPT2<T>& model) {
    for (const Tensor& tensor : model.table().tensors()) {
        if (!is_quantized(tensor)) continue;
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

template void quantize_weights(GPT2<float>&);
template void quantize_weights(GPT2<bfloat16>&);
