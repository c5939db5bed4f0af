// A checkpoint's state.json, as it is and with its checksum put right, and one file beside it: the two parts
// of an input.
#include <xxhash.h>

#include "fuzz.h"
#include "system/json_text.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/run/outlier_detector.h"

// state.json as write_state would write these entries.
static std::string with_checksum(std::string_view text) {
    static constexpr auto replace = nlohmann::json::error_handler_t::replace;
    nlohmann::json object = parse_json(text);
    if (!object.is_object()) return std::string(text);
    object.erase("xxh3_64");
    const std::string without = object.dump(2, ' ', true, replace) + "\n";
    object["xxh3_64"] = fmt::format("{:016x}", XXH3_64bits(without.data(), without.size()));
    return object.dump(2, ' ', true, replace) + "\n";
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const FuzzFolder folder("checkpoint");
    folder.clear();
    const std::vector<std::string_view> parts = parts_of(as_text(data, size), 2);
    read_or_refuse([&] { parse_state("state.json", parts[0]); });
    folder.write("state.json", with_checksum(parts[0]));
    folder.write("model.safetensors", parts[1]);
    read_or_refuse([&] { OutlierDetector(7, 7).restore(read_state(folder.path()).outlier_detector); });
    read_or_refuse([&] { OutlierDetector(7, 7).restore(whole_checkpoint(folder.path()).outlier_detector); });
    return 0;
}
