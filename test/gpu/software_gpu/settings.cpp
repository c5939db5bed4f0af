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
                "approximation=nearest|up|down|seeded, truncate, count, multiprocessors=N",
                word));
        };
        const auto number = [&](size_t most_digits) -> uint64_t {
            const bool digits = !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
            if (!digits || value.size() > most_digits) unknown();
            return std::stoull(value);
        };
        if (name == "order") {
            settings.order = value == "ascending"    ? Order::ascending
                             : value == "descending" ? Order::descending
                             : value == "seeded"     ? Order::seeded
                                                     : (unknown(), Order::seeded);
        } else if (name == "seed") {
            settings.seed = number(18);
        } else if (name == "multiprocessors") {
            settings.multiprocessors = static_cast<int>(number(4));
            if (settings.multiprocessors == 0) unknown();
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
