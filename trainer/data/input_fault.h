// input_fault.h: data that cannot be read any more, or is damaged where nothing has read it before. The model
// is sound then, so a run saves it before it ends.
#pragma once
#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "system/error.h"
#include "trainer/distributed/communicator.h"

class InputFault : public Error {
public:
    using Error::Error;
    explicit InputFault(const Error& error) : Error(error) {}
};

// Calls read(), whose errors become InputFaults.
template <class Read>
decltype(auto) reading_input(const Read& read) {
    try {
        return read();
    } catch (const Error& error) { throw InputFault(error); }
}

// Collective, after any rank had a fault: all ranks throw that of the lowest rank that had one.
[[noreturn]] inline void throw_together(Communicator& communicator, const std::optional<InputFault>& mine) {
    const std::vector<std::string> faults =
        gather_texts(communicator, mine ? fmt::format("{} {}", mine->exit_code, mine->what()) : "");
    int rank = 0;
    while (faults.at(static_cast<size_t>(rank)).empty()) rank++;
    const std::string& text = faults[static_cast<size_t>(rank)];
    int exit_code = 1;
    std::from_chars(text.data(), text.data() + text.size(), exit_code);
    const std::string message = text.substr(text.find(' ') + 1);
    throw InputFault(rank == communicator.rank() ? message : fmt::format("rank {}: {}", rank, message),
                     exit_code);
}
