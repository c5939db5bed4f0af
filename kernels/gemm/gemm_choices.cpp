#include "kernels/gemm/gemm_choices.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>

#include "system/error.h"
#include "system/json_text.h"

using nlohmann::json;

namespace {

constexpr const char* choices_format = "flatgpt matmul algorithms 2";

// The checksum covers everything in the object but itself.
std::string choices_checksum(json object) {
    object.erase("checksum");
    const std::string text = object.dump();
    return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

std::string to_hexadecimal(const GemmAlgorithm& algorithm) {
    std::string text;
    for (const uint64_t word : algorithm) text += fmt::format("{:016x}", word);
    return text;
}

std::optional<GemmAlgorithm> from_hexadecimal(const std::string& text) {
    GemmAlgorithm algorithm;
    constexpr size_t digits = 16;
    if (text.size() != digits * algorithm.size()) return std::nullopt;
    for (size_t i = 0; i < algorithm.size(); i++) {
        const char *first = text.data() + i * digits, *last = first + digits;
        const auto [end, error] = std::from_chars(first, last, algorithm[i], 16);
        if (error != std::errc() || end != last) return std::nullopt;
    }
    return algorithm;
}

GemmChoice choice_of(const json& entry) {
    GemmChoice choice;
    if (entry.contains("algorithm")) {
        choice.algorithm = from_hexadecimal(entry.at("algorithm").get<std::string>());
        CHECK(choice.algorithm, "it is damaged: an algorithm is not 128 hexadecimal digits");
    }
    choice.description = entry.at("description").get<std::string>();
    choice.ms = entry.at("ms").get<double>();
    choice.first_ms = entry.at("first_ms").get<double>();
    choice.tflops = entry.at("tflops").get<double>();
    return choice;
}

}  // namespace

const GemmChoice* GemmChoices::find(const std::string& product) const {
    const auto found = choices_.find(product);
    return found == choices_.end() ? nullptr : &found->second;
}

void GemmChoices::set(const GemmChoices& other) {
    for (const auto& [product, choice] : other.choices_) choices_[product] = choice;
}

std::string GemmChoices::text(const GemmMachine& machine, bool timed_only) const {
    json object = {{"format", choices_format},
                   {"gpu", machine.gpu},
                   {"multiprocessors", machine.multiprocessors},
                   {"cublaslt", machine.library_version},
                   {"products", json::object()}};
    for (const auto& [product, choice] : choices_) {
        if (timed_only && choice.ms == 0) continue;
        json entry = {{"description", choice.description},
                      {"ms", choice.ms},
                      {"first_ms", choice.first_ms},
                      {"tflops", choice.tflops}};
        if (choice.algorithm) entry["algorithm"] = to_hexadecimal(*choice.algorithm);
        object["products"][product] = entry;
    }
    object["checksum"] = choices_checksum(object);
    return object.dump(1) + "\n";
}

GemmChoices GemmChoices::parse(const std::string& text, const GemmMachine& machine) {
    const json object = parse_json(text);
    CHECK(object.is_object(), "it is damaged: not JSON");
    try {
        CHECK(object.at("format") == choices_format, "its format is {}, not {}", shown(object.at("format")),
              choices_format);
        CHECK(object.at("checksum") == choices_checksum(object), "it is damaged: its checksum is wrong");
        const GemmMachine its{object.at("gpu").get<std::string>(),
                              whole_number<int>(object.at("multiprocessors")),
                              whole_number<size_t>(object.at("cublaslt"))};
        CHECK(its.gpu == machine.gpu && its.multiprocessors == machine.multiprocessors,
              "it is of another GPU: {} with {} multiprocessors, not {} with {}", shown(object.at("gpu")),
              its.multiprocessors, machine.gpu, machine.multiprocessors);
        CHECK(its.library_version == machine.library_version, "it is of another cuBLASLt: {}, not {}",
              its.library_version, machine.library_version);
        GemmChoices choices;
        for (const auto& [product, entry] : object.at("products").items())
            choices.set(product, choice_of(entry));
        return choices;
    } catch (const json::exception&) {
        throw UsageError("it is damaged: a field is missing or of another type");
    }
}

std::vector<std::string> GemmChoices::lines() const {
    std::vector<std::pair<std::string, GemmChoice>> sorted(choices_.begin(), choices_.end());
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
    std::vector<std::string> lines;
    for (const auto& [product, choice] : sorted) {
        std::string line = fmt::format("{}: {}", product, choice.description);
        if (choice.ms > 0)
            line += fmt::format(", {:.3f} ms, {:.1f} TFLOP/s (first choice: {:.3f} ms)", choice.ms,
                                choice.tflops, choice.first_ms);
        lines.push_back(line);
    }
    return lines;
}
