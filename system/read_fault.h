// read_fault.h: a page of a mapped file that cannot be read is a SIGBUS for the thread that touches it.
//   copy_from_mapping() reports it to its caller. Anywhere else in a known mapping, the handler writes one
//   line to standard error, which names the file and the offset, and ends the process with exit code 1. What
//   SIGBUS means elsewhere stays as it was.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

// From the first one on, the handler is there.
void know_mapping(const std::string& path, std::string_view bytes);
void forget_mapping(std::string_view bytes);

// memcpy. The address whose byte could not be read; nullptr if all could.
const char* copy_from_mapping(void* to, const char* from, size_t bytes);

// Why the byte at offset could not be read: the signal does not say, but reading it by a call may. Safe in a
// signal handler.
const char* reason_of_read_fault(const char* path, size_t offset);
