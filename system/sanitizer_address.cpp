#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

#include "system/sanitizer.h"

void asan_poison(const void* memory, size_t bytes) { __asan_poison_memory_region(memory, bytes); }
void asan_unpoison(const void* memory, size_t bytes) { __asan_unpoison_memory_region(memory, bytes); }

void asan_leave_stack(void** saved_fake_stack, const void* bottom, size_t bytes) {
    __sanitizer_start_switch_fiber(saved_fake_stack, bottom, bytes);
}
void asan_enter_stack(void* saved_fake_stack, const void** left_bottom, size_t* left_bytes) {
    __sanitizer_finish_switch_fiber(saved_fake_stack, left_bottom, left_bytes);
}
