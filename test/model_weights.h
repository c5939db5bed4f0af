// model_weights.h: a small model in files, for the tests of model files.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <vector>

#include "temporary_folder.h"
#include "trainer/models/families.h"
#include "trainer/models/hugging_face.h"
#include "trainer/models/model_file.h"

constexpr ModelConfig small_config{131, 12, 2, 3, 24};

// A flat buffer whose every parameter has a value of its own, with rubbish between the tensors.
inline std::vector<float> masters_of(const TensorTable& table) {
    std::vector<float> masters(table.elements(), NAN);
    float next = 1;
    for (const Tensor& t : table.tensors()) {
        for (size_t i = 0; i < t.elements; i++)
            masters[t.offset + i] = i < t.unpadded_elements ? next++ * 0x1p-20f : 0;
    }
    return masters;
}

inline void expect_same_weights(const ModelFile& file, const TensorTable& table,
                                const std::vector<float>& masters) {
    ASSERT_EQ(file.table().elements(), table.elements());
    for (const Tensor& t : table.tensors()) {
        const std::vector<float> values = file.values(t);
        ASSERT_EQ(values.size(), t.elements) << t.name;
        EXPECT_EQ(std::memcmp(values.data(), masters.data() + t.offset, t.elements * sizeof(float)), 0)
            << t.name;
    }
}

inline void write_folder(const std::string& folder, const ModelConfig& config = small_config) {
    std::filesystem::create_directories(folder);
    const TensorTable table = table_of(config);
    write_hugging_face_model(folder + "/model.safetensors", table, masters_of(table).data());
    write_hugging_face_metadata(folder, config, *make_tokenizer(config.V <= 256 ? "byte" : "gpt2"));
}
