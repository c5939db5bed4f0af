#include "system/sanitizer.h"

void asan_poison(const void*, size_t) {}
void asan_unpoison(const void*, size_t) {}
void asan_leave_stack(void**, const void*, size_t) {}
void asan_enter_stack(void*, const void**, size_t*) {}
