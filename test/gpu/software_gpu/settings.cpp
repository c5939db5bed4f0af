#include <fmt/format.h>

#include "software_gpu.h"

namespace software_gpu {

Settings Settings::parse(std::string_view text) {
    Settings settings;
    while (!text.empty()) {
        const std::string word(text.substr(0, text.find(',')));
        text.remove_prefix(std::min(text.size(), word.size() + 1));
        const size_t equals = word.find('=');
        const std::string name = word.substr(0, equals),
                          value = equals == std::string::npos ? "" : word.substr(equals + 1);
        const auto unknown = [&] {
            throw Fault(fmt::format(
                "SOFTWARE_GPU: \"{}\" is not known; expected order=ascending|descending|seeded, seed=N, "
                "approximation=nearest|up|down|seeded, truncate, count",
                word));
        };
        if (name == "order") {
            settings.order = value == "ascending"    ? Order::ascending
                             : value == "descending" ? Order::descending
                             : value == "seeded"     ? Order::seeded
                                                     : (unknown(), Order::seeded);
        } else if (name == "seed") {
            if (value.empty() || value.find_first_not_of("0123456789") != std::string::npos ||
                value.size() > 18)
                unknown();
            settings.seed = std::stoull(value);
        } else if (name == "approximation") {
            settings.approximation = value == "nearest"  ? Approximation::nearest
                                     : value == "up"     ? Approximation::up
                                     : value == "down"   ? Approximation::down
                                     : value == "seeded" ? Approximation::seeded
                                                         : (unknown(), Approximation::seeded);
        } else if (word == "truncate") {
            settings.tensor_cores_truncate = true;
        } else if (word == "count") {
            settings.count = true;
        } else {
            unknown();
        }
    }
    return settings;
}

}  // namespace software_gpu
