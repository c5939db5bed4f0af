// peaks.cpp: round figures in place of trainer/run/peaks.cu's measurements, whose large products would take
//   the software GPU hours. The linker sends the trainer's calls here (--wrap).
#include "trainer/run/peaks.h"

extern "C" {
double __wrap__Z22measure_copy_bandwidthv() { return 1e12; }
double __wrap__Z19measure_matmul_rate5DTypeb(DType, bool) { return 1e12; }
}

MatmulPeak peak_of_software_gpu(const std::string&, DType, double) asm(
    "__wrap__Z11matmul_peakRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE5DTyped");
MatmulPeak peak_of_software_gpu(const std::string&, DType, double) { return {1e12, true}; }
