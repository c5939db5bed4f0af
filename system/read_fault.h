// read_fault.h: unreadable pages of mapped files. The thread that touches such a page receives SIGBUS.
//   copy_from_mapping() reports the fault to its caller. Anywhere else in a known mapping, the handler
//   writes one line with the file and the offset to standard error and ends the process with exit code 1.
//   A SIGBUS outside known mappings has its previous effect.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

// Registers a mapping; the first call installs the handler.
void know_mapping(const std::string& path, std::string_view bytes);
void forget_mapping(std::string_view bytes);

// memcpy that returns the address of the byte that could not be read, or nullptr if all were copied.
const char* copy_from_mapping(void* to, const char* from, size_t bytes);

// The reason why the byte at offset could not be read. The signal does not carry it, so the byte is read
// by a system call. Safe in a signal handler.
const char* reason_of_read_fault(const char* path, size_t offset);
