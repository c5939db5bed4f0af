#include "trainer/models/families.h"

#include "system/error.h"
#include "trainer/models/gpt2/gpt2_files.h"

const std::vector<FamilyDescription>& families() {
    static const std::vector<FamilyDescription> all = {gpt2_family()};
    return all;
}

const FamilyDescription& family_of(const ModelConfig& config) {
    for (const FamilyDescription& family : families())
        if (config.family == family.name) return family;
    throw Error(fmt::format("no family is called {}", config.family));
}

ModelConfig named_model(const std::string& name) {
    std::string known;
    for (const FamilyDescription& family : families()) {
        for (const auto& [size, config] : family.sizes) {
            if (size == name) return config;
            known += (known.empty() ? "" : ", ") + size;
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
