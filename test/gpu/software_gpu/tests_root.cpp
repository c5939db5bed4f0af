// tests_root.cpp: tests that were compiled to start build/cuda/'s programs start build/software-gpu/'s
// (relocated() in test/program.h).
#include <cstdlib>

namespace {
[[maybe_unused]] const int root = setenv("FLATGPT_ROOT", SOFTWARE_ROOT, 0);
}
