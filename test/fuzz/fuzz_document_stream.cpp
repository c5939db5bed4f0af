// Documents as JSON lines, as `tokenize --stream` reads them.
#include <fcntl.h>

#include "fuzz.h"
#include "trainer/data/document_stream.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const MemoryFile memory(as_text(data, size));
    for (const bool until_end : {false, true}) {
        const int file = open(memory.path().c_str(), O_RDONLY | O_CLOEXEC);
        read_or_refuse([&] {
            DocumentStream stream(file, "input", {.place = until_end ? "place" : ""}, until_end, [] {});
            size_t bytes = 0;
            while (const auto document = stream.next()) {
                require(!document->place.empty() && !document->end);
                bytes += document->text.size();
            }
            require(bytes <= size);
        });
        close(file);
    }
    return 0;
}
