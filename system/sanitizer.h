// sanitizer.h: what AddressSanitizer cannot find out about memory and stacks by itself.
//   Checked and fuzz builds, which turn AddressSanitizer on, link sanitizer_address.cpp. Other builds link
//   sanitizer_none.cpp, where these functions do nothing.
#pragma once
#include <cstddef>

// An access to poisoned memory is an error.
void asan_poison(const void* memory, size_t bytes);
void asan_unpoison(const void* memory, size_t bytes);

// Before a switch to the stack whose lowest byte is at `bottom`; saved_fake_stack is null if the stack that
// is left will not be used again.
void asan_leave_stack(void** saved_fake_stack, const void* bottom, size_t bytes);
// After the switch, on the new stack; returns in the last two which stack was left (both may be null).
void asan_enter_stack(void* saved_fake_stack, const void** left_bottom, size_t* left_bytes);
