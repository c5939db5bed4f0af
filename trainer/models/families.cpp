#include "trainer/models/families.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "system/error.h"
#include "trainer/models/gpt2/gpt2_files.h"
#include "trainer/models/llama/llama_files.h"

const std::vector<FamilyDescription>& families() {
    static const std::vector<FamilyDescription> all = {gpt2_family(), llama_family(), qwen3_family(),
                                                       nanochat_family()};
    return all;
}

const FamilyDescription& family_of(const ModelConfig& config) {
    for (const FamilyDescription& family : families())
        if (config.family == family.name) return family;
    throw Error(fmt::format("no family is called {}", config.family));
}

nlohmann::json sizes_of(const ModelConfig& c) {
    nlohmann::json sizes = {
        {"layers", c.L}, {"heads", c.NH}, {"channels", c.C}, {"context", c.context}, {"vocab", c.V}};
    if (c.family == families().front().name) return sizes;
    sizes.update({{"kv-heads", c.NKV},
                  {"hidden", c.H},
                  {"head-size", c.HS()},
                  {"rope-theta", c.rope_theta},
                  {"norm-eps", c.norm_eps},
                  {"untied", !c.tied}});
    if (family_of(c).has_flag) sizes[family_of(c).name] = true;
    if (c.family == "nanochat") sizes.erase("untied");
    return sizes;
}

// The letters and digits of a name, which are right in most names that are misspelt.
static std::string letters_of(const std::string& name) {
    std::string letters;
    for (const char c : name)
        if (std::isalnum(static_cast<unsigned char>(c))) letters += static_cast<char>(std::tolower(c));
    return letters;
}

ModelConfig named_model(const std::string& name) {
    std::string with_colon = name;
    std::ranges::replace(with_colon, '_', ':');
    // names that share what is before a colon are joined: "gpt3:c384|c768"
    std::string known, prefix, alike;
    for (const FamilyDescription& family : families()) {
        if (family.has_flag && name == family.name)
            alike = fmt::format("--{} for a model of any sizes, or {}", name, family.sizes.begin()->first);
        for (const auto& [size, config] : family.sizes) {
            if (size == name || size == with_colon) return config;
            if (letters_of(size) == letters_of(name)) alike = size;
            const std::string own = size.substr(0, size.find(':') + 1);
            if (!known.empty() && own == prefix) known += "|" + size.substr(own.size());
            else known += (known.empty() ? "" : ", ") + size;
            prefix = own;
        }
    }
    throw UsageError(fmt::format("unknown model '{}'; expected {}", name, alike.empty() ? known : alike));
}

void check_shape(const std::string& path, const ModelConfig& config) {
    try {
        family_of(config).check(config);
    } catch (const UsageError& error) { throw UsageError(fmt::format("{}: {}", path, error.what())); }
}

TensorTable table_of(const ModelConfig& config, const TableLayout& layout) {
    family_of(config).check(config);
    TensorTable table(config.L, layout);
    family_of(config).add_rows(table, config);
    table.complete();
    return table;
}
