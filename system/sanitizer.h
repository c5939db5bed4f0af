// sanitizer.h: what AddressSanitizer must be told about memory and stacks that it does not manage. Without it
// these do nothing.
#pragma once
#include <cstddef>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace simt {

inline void asan_poison([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    ASAN_POISON_MEMORY_REGION(memory, bytes);
#endif
}
inline void asan_unpoison([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
#endif
}

// Before a switch to the stack at `bottom`; saved_fake_stack is null if the stack that is left will not be
// used again.
inline void asan_leave_stack([[maybe_unused]] void** saved_fake_stack, [[maybe_unused]] const void* bottom,
                             [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(saved_fake_stack, bottom, bytes);
#endif
}
// After the switch, on the new stack; tells which stack was left.
inline void asan_enter_stack([[maybe_unused]] void* saved_fake_stack,
                             [[maybe_unused]] const void** left_bottom, [[maybe_unused]] size_t* left_bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(saved_fake_stack, left_bottom, left_bytes);
#endif
}

}  // namespace simt
