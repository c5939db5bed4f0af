// model_config.h: the numbers that describe a model's shape. Which of them a family uses, and which values it
// accepts, is said in its folder under trainer/models/.
#pragma once
#include <string_view>

struct ModelConfig {
    int V = 256;                       // vocabulary
    int context = 64;                  // longest sequence
    int L = 4;                         // blocks
    int NH = 4;                        // heads
    int C = 128;                       // channels
    std::string_view family = "gpt2";  // a name of trainer/models/families.h

    int HS() const { return C / NH; }
    // Rows of the embedding and of the head. Padded logits get no probability, and their rows no gradient.
    int Vp() const { return (V + 127) / 128 * 128; }
    bool operator==(const ModelConfig&) const = default;
};
