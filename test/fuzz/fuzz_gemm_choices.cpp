// A run's matmul_algorithms.json, as it is and with its checksum put right.
#include <xxhash.h>

#include "fuzz.h"
#include "kernels/gemm/gemm_choices.h"
#include "system/json_text.h"

static std::string with_checksum(std::string_view text) {
    static constexpr auto replace = nlohmann::json::error_handler_t::replace;
    nlohmann::json object = parse_json(text);
    if (!object.is_object()) return std::string(text);
    object.erase("checksum");
    const std::string without = object.dump(-1, ' ', false, replace);
    object["checksum"] = fmt::format("{:016x}", XXH3_64bits(without.data(), without.size()));
    return object.dump(1, ' ', false, replace);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const GemmMachine machine{"NVIDIA H100", 132, 130100};
    for (const std::string& text : {std::string(as_text(data, size)), with_checksum(as_text(data, size))}) {
        read_or_refuse([&] {
            const GemmChoices choices = GemmChoices::parse(text, machine);
            const std::string again = choices.text(machine);
            require(GemmChoices::parse(again, machine).text(machine) == again);
            for (const std::string& line : choices.lines()) touch(line);
        });
    }
    return 0;
}
