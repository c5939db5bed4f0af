// gemm_choices.h: the text that a run stores is read back, and other texts are rejected.
#include "kernels/gemm/gemm_choices.h"
#include "system/json_text.h"
#include "temporary_folder.h"

namespace {

const GemmMachine machine{"NVIDIA H100 80GB HBM3", 132, 130100};
const GemmChoice measured{GemmAlgorithm{1, 0xfedcba9876543210, 3, 4, 5, 6, 7, ~uint64_t{0}},
                          "algorithm 66, K in 4 parts", 0.1, 0.30000000000000004, 612.5};
const GemmChoice apart{std::nullopt, "apart from its epilogue", 0, 0, 0};

GemmChoices two() {
    GemmChoices choices;
    choices.set("TN m = 768", measured);
    choices.set("NT m = 768, adding", apart);
    return choices;
}

TEST(GemmChoices, ComeBackFromTheirText) {
    const std::string text = two().text(machine);
    const GemmChoices read = GemmChoices::parse(text, machine);
    ASSERT_EQ(read.size(), 2u);
    ASSERT_NE(read.find("TN m = 768"), nullptr);
    EXPECT_EQ(*read.find("TN m = 768"), measured);
    EXPECT_EQ(*read.find("NT m = 768, adding"), apart);
    EXPECT_EQ(read.find("TN m = 769"), nullptr);
    EXPECT_EQ(read.text(machine), text);
    EXPECT_EQ(GemmChoices::parse(GemmChoices().text(machine), machine).size(), 0u);
}

TEST(GemmChoices, OfAnotherMachineAreRefused) {
    const auto refusal = [](const GemmMachine& other) {
        return message_of<UsageError>([&] { GemmChoices::parse(two().text(other), machine); });
    };
    EXPECT_EQ(
        refusal({"NVIDIA A100", 132, 130100}),
        "it is of another GPU: \"NVIDIA A100\" with 132 multiprocessors, not NVIDIA H100 80GB HBM3 with 132");
    EXPECT_TRUE(says(refusal({machine.gpu, 114, 130100}), "with 114 multiprocessors"));
    EXPECT_EQ(refusal({machine.gpu, 132, 130101}), "it is of another cuBLASLt: 130101, not 130100");
}

TEST(GemmChoices, NoDamageIsTakenForAChoice) {
    const std::string text = two().text(machine);
    for (size_t i = 0; i < text.size(); i++) {
        for (const int bit : {0, 4}) {
            std::string changed = text;
            changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
            // White space means nothing in JSON.
            if (parse_json(changed) == parse_json(text)) continue;
            EXPECT_THROW(GemmChoices::parse(changed, machine), UsageError) << "byte " << i << ", bit " << bit;
        }
    }
    for (size_t i = 0; i + 1 < text.size(); i++)
        EXPECT_THROW(GemmChoices::parse(text.substr(0, i), machine), UsageError) << "cut to " << i;
    for (const char* other : {"", "null", "[]", "{}", "{\"format\": 1}", "\xff"})
        EXPECT_THROW(GemmChoices::parse(other, machine), UsageError) << other;
}

TEST(GemmChoices, ArePrintedTheLongestFirst) {
    EXPECT_EQ(two().lines(),
              (std::vector<std::string>{
                  "TN m = 768: algorithm 66, K in 4 parts, 0.100 ms, 612.5 TFLOP/s (first choice: 0.300 ms)",
                  "NT m = 768, adding: apart from its epilogue"}));
}

}  // namespace
