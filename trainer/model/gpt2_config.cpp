#include "trainer/model/gpt2_config.h"

#include <fmt/format.h>

#include <map>

#include "system/error.h"
#include "trainer/model/tensor_table.h"

void GPT2Config::check() const {
    CHECK(V > 0, "a vocabulary of {} tokens; expected 1 or more", V);
    CHECK(V <= 65536,
          "a vocabulary of {} tokens; expected at most 65536, since token files hold 16 bits a token", V);
    CHECK(context > 0, "a context of {} tokens; expected 1 or more", context);
    CHECK(L > 0, "{} layers; expected 1 or more", L);
    CHECK(NH > 0, "{} heads; expected 1 or more", NH);
    CHECK(C > 0, "{} channels; expected 1 or more", C);
    CHECK(C % NH == 0, "{} channels do not divide into {} heads; expected a multiple", C, NH);
    CHECK(HS() <= 128, "{} channels over {} heads are {} a head; expected at most 128: use more heads", C, NH,
          HS());
}

GPT2Config GPT2Config::named(const std::string& name) {
    struct Size {
        int L, NH, C;
    };
    // GPT-2 is named by depth (Radford et al. 2019, table 2, and llm.c's sizes in between), GPT-3 by
    // width (Brown et al. 2020, table 2.1).
    static const std::map<std::string, Size> gpt2 = {
        {"d6", {6, 6, 384}},
        {"d12", {12, 12, 768}},
        {"d24", {24, 16, 1024}},
        {"d36", {36, 20, 1280}},
        {"d48", {48, 25, 1600}},
        {"d60", {60, 30, 1920}},
        {"d72", {72, 30, 2880}},
        {"d84", {84, 36, 3456}},
        {"gpt2", {12, 12, 768}},
        {"gpt2-medium", {24, 16, 1024}},
        {"gpt2-large", {36, 20, 1280}},
        {"gpt2-xl", {48, 25, 1600}},
    };
    static const std::map<std::string, Size> gpt3 = {
        {"gpt3:c384", {6, 6, 384}},     {"gpt3:c768", {12, 12, 768}},   {"gpt3:c1024", {24, 16, 1024}},
        {"gpt3:c1536", {24, 16, 1536}}, {"gpt3:c2048", {24, 16, 2048}}, {"gpt3:c2560", {32, 32, 2560}},
        {"gpt3:c4096", {32, 32, 4096}}, {"gpt3:c5120", {40, 40, 5120}}, {"gpt3:c12288", {96, 96, 12288}},
    };
    if (const auto found = gpt2.find(name); found != gpt2.end())
        return {50257, 1024, found->second.L, found->second.NH, found->second.C};
    if (const auto found = gpt3.find(name); found != gpt3.end())
        return {50257, 2048, found->second.L, found->second.NH, found->second.C};
    std::string known;
    for (const auto* family : {&gpt2, &gpt3}) {
        for (const auto& [key, size] : *family) known += (known.empty() ? "" : ", ") + key;
    }
    throw UsageError(fmt::format("unknown model '{}'; expected one of {}", name, known));
}

double flops_per_token(const GPT2Config& config, int seq_len) {
    return 6.0 * static_cast<double>(TensorTable(config).parameters()) + 6.0 * config.L * config.C * seq_len;
}
