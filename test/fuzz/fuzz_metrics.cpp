// A run's metrics.jsonl, cut back to a step, which is the first byte. The kept part consists of whole
// lines of the file, and a second cut keeps all of it.
#include "fuzz.h"
#include "trainer/run/resume.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const int step = data[0] / 2;
    const bool evaluated = data[0] % 2;
    const std::string text(as_text(data + 1, size - 1));
    const std::string kept = metrics_up_to(text, step, evaluated);
    require(kept.empty() || (kept.ends_with('\n') && kept.size() <= text.size()));
    require(metrics_up_to(kept, step, evaluated) == kept);
    return 0;
}
