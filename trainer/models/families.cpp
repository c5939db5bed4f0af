#include "trainer/models/families.h"

#include <nlohmann/json.hpp>

#include "system/error.h"
#include "trainer/models/gpt2/gpt2_files.h"
#include "trainer/models/llama/llama_files.h"

const std::vector<FamilyDescription>& families() {
    static const std::vector<FamilyDescription> all = {gpt2_family(), llama_family(), nanochat_family()};
    return all;
}

const FamilyDescription& family_of(const ModelConfig& config) {
    for (const FamilyDescription& family : families())
        if (config.family == family.name) return family;
    throw Error(fmt::format("no family is called {}", config.family));
}

nlohmann::json further_sizes(const ModelConfig& c) {
    if (c.family == families().front().name) return nlohmann::json::object();
    nlohmann::json sizes = {{"kv-heads", c.NKV},          {"hidden", c.H},          {"head-size", c.HS()},
                            {"rope-theta", c.rope_theta}, {"norm-eps", c.norm_eps}, {"untied", !c.tied}};
    if (c.family == "nanochat") {
        sizes["nanochat"] = true;
        sizes.erase("untied");
    }
    return sizes;
}

ModelConfig named_model(const std::string& name) {
    std::string known, prefix;  // names that share what is before a colon: "gpt3:c384|c768"
    for (const FamilyDescription& family : families()) {
        for (const auto& [size, config] : family.sizes) {
            if (size == name) return config;
            const std::string own = size.substr(0, size.find(':') + 1);
            if (!known.empty() && own == prefix) known += "|" + size.substr(own.size());
            else known += (known.empty() ? "" : ", ") + size;
            prefix = own;
        }
    }
    throw UsageError(fmt::format("unknown model '{}'; expected one of {}", name, known));
}

void check_shape(const std::string& path, const ModelConfig& config) {
    try {
        family_of(config).check(config);
    } catch (const UsageError& error) { throw UsageError(fmt::format("{}: {}", path, error.what())); }
}

TensorTable table_of(const ModelConfig& config, const TableLayout& layout) {
    return family_of(config).table(config, layout);
}
