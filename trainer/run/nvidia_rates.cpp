#include "trainer/run/nvidia_rates.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>
#include <vector>

namespace {

// TFLOP/s without sparsity (data sheets like to print the double) and with fp32 accumulation (of which
// GeForce cards have half the rate of fp16
// accumulation), at the boost clock. 0: not on this GPU; Turing has neither bf16 nor tf32. Each group names
// its source; where that has a card's fp32 rate only, the others are the multiples of it that its
// architecture's white paper has: GeForce bf16 2 and tf32 1, workstations 4 and 2. The fp32 rate itself is
// two operations for every core and clock: test_nvidia_rates.cpp computes it so for every card whose boost
// clock NVIDIA prints. Where one name stands for several cards, the first of them: later ones differ by up to
// 11 % (GTX 1650 GDDR6, RTX 2060 and RTX 3080 12 GB).
struct Rates {
    const char* name;  // its words in capitals, without those that are passed over
    double bf16, tf32, fp32;
};

constexpr Rates data_sheets[] = {
    // data centre, Turing, Ampere and Ada: the data sheets of each (T4, A2, A10, .., L40S); A10G: NVIDIA's
    // for AWS
    {"T4", 0, 0, 8.1},
    {"A2", 18, 9, 4.5},
    {"A10", 125, 62.5, 31.2},
    {"A10G", 70, 35, 31.5},
    {"A16", 17.9, 9, 4.5},
    {"A30", 165, 82, 10.3},
    {"A40", 149.7, 74.8, 37.4},
    {"A100", 312, 156, 19.5},
    {"A100 PCIE", 312, 156, 19.5},
    {"A800", 312, 156, 19.5},
    {"A800 PCIE", 312, 156, 19.5},
    {"L4", 121, 60, 30.3},
    {"L20", 119.5, 59.8, 59.8},
    {"L40", 181, 90.5, 90.5},
    {"L40S", 362, 183, 91.6},
    // data centre, Hopper: white paper "NVIDIA H100 Tensor Core GPU Architecture", data sheets of NVL, H200,
    // GH200 and H20; SXM modules carry no word
    {"H20", 148, 74, 44},
    {"H100", 989.4, 494.7, 66.9},
    {"H100 PCIE", 756, 378, 51.2},
    {"H100 NVL", 835.5, 417.5, 60},
    {"H800", 989.4, 494.7, 66.9},
    {"H800 PCIE", 756, 378, 51.2},
    {"H200", 989.4, 494.7, 66.9},
    {"H200 NVL", 835.5, 417.5, 60},
    {"GH200", 989.4, 494.7, 66.9},
    // data centre, Blackwell: data sheets of HGX B100, B200 and B300 (an eighth of their sums), GB200 NVL72
    // and GB300 NVL72 (a 72nd)
    {"B100", 1750, 875, 60},
    {"B200", 2250, 1125, 75},
    {"B300", 2250, 1125, 75},
    {"GB200", 2500, 1250, 80},
    {"GB300", 2500, 1250, 80},
    // workstations: the data sheets of each; "tensor performance" there is with sparsity, of fp16 on Ampere
    // and of fp8 on Ada
    {"QUADRO RTX 4000", 0, 0, 7.1},
    {"QUADRO RTX 5000", 0, 0, 11.2},
    {"QUADRO RTX 6000", 0, 0, 16.3},
    {"QUADRO RTX 8000", 0, 0, 16.3},
    {"TITAN RTX", 0, 0, 16.3},
    {"RTX A2000", 31.9, 16, 8},
    {"RTX A2000 12GB", 31.9, 16, 8},
    {"RTX A4000", 76.7, 38.3, 19.2},
    {"RTX A4500", 94.6, 47.3, 23.7},
    {"RTX A5000", 111.1, 55.6, 27.8},
    {"RTX A5500", 136.4, 68.2, 34.1},
    {"RTX A6000", 154.8, 77.4, 38.7},
    {"RTX 2000 ADA GENERATION", 48, 24, 12},
    {"RTX 4000 SFF ADA GENERATION", 76.7, 38.3, 19.2},
    {"RTX 4000 ADA GENERATION", 106.9, 53.5, 26.7},
    {"RTX 4500 ADA GENERATION", 158.5, 79.3, 39.6},
    {"RTX 5000 ADA GENERATION", 261.1, 130.6, 65.3},
    {"RTX 6000 ADA GENERATION", 364.2, 182.1, 91.1},
    {"RTX PRO 6000 BLACKWELL WORKSTATION EDITION", 503.8, 251.9, 126},
    {"RTX PRO 6000 BLACKWELL SERVER EDITION", 480, 240, 120},
    {"RTX PRO 6000 BLACKWELL MAX Q WORKSTATION EDITION", 440, 220, 110},
    // GeForce, Turing: white paper "NVIDIA Turing GPU Architecture", and cores and boost clock on the pages
    // of those not in it
    {"GTX 1650", 0, 0, 3},
    {"GTX 1650 SUPER", 0, 0, 4.4},
    {"GTX 1660", 0, 0, 5},
    {"GTX 1660 SUPER", 0, 0, 5},
    {"GTX 1660 TI", 0, 0, 5.4},
    {"RTX 2060", 0, 0, 6.5},
    {"RTX 2060 SUPER", 0, 0, 7.2},
    {"RTX 2070", 0, 0, 7.5},
    {"RTX 2070 SUPER", 0, 0, 9.1},
    {"RTX 2080", 0, 0, 10.1},
    {"RTX 2080 SUPER", 0, 0, 11.2},
    {"RTX 2080 TI", 0, 0, 13.4},
    // GeForce, Ampere: white paper "NVIDIA Ampere GA102 GPU Architecture", and cores and boost clock
    {"RTX 3050", 18.2, 9.1, 9.1},
    {"RTX 3060", 25.5, 12.7, 12.7},
    {"RTX 3060 TI", 32.4, 16.2, 16.2},
    {"RTX 3070", 40.6, 20.3, 20.3},
    {"RTX 3070 TI", 43.5, 21.7, 21.7},
    {"RTX 3080", 59.5, 29.8, 29.8},
    {"RTX 3080 TI", 68.2, 34.1, 34.1},
    {"RTX 3090", 71.2, 35.6, 35.6},
    {"RTX 3090 TI", 80, 40, 40},
    // GeForce, Ada: white paper "NVIDIA Ada GPU Architecture", and cores and boost clock
    {"RTX 4060", 30.2, 15.1, 15.1},
    {"RTX 4060 TI", 44.1, 22.1, 22.1},
    {"RTX 4070", 58.3, 29.1, 29.1},
    {"RTX 4070 SUPER", 71, 35.5, 35.5},
    {"RTX 4070 TI", 80.2, 40.1, 40.1},
    {"RTX 4070 TI SUPER", 88.2, 44.1, 44.1},
    {"RTX 4080", 97.5, 48.7, 48.7},
    {"RTX 4080 SUPER", 104.4, 52.2, 52.2},
    {"RTX 4090", 165.2, 82.6, 82.6},
    {"RTX 4090 D", 147.1, 73.5, 73.5},
    // GeForce, Blackwell: white paper "NVIDIA RTX Blackwell GPU Architecture", and cores and boost clock
    {"RTX 5050", 26.3, 13.2, 13.2},
    {"RTX 5060", 38.4, 19.2, 19.2},
    {"RTX 5060 TI", 47.4, 23.7, 23.7},
    {"RTX 5070", 61.7, 30.9, 30.9},
    {"RTX 5070 TI", 87.9, 43.9, 43.9},
    {"RTX 5080", 112.6, 56.3, 56.3},
    {"RTX 5090", 209.5, 104.8, 104.8},
};

// Words that say nothing about the rate: makers, sockets of modules ("SXM4"), cooling, and memory, of those
// sizes which a chip has beside others.
// Any other size may be another chip: a GeForce RTX 3050 with 6 GB has fewer cores, the A100 with 64 GB more.
bool is_passed_over(const std::string& word) {
    static const std::set<std::string> words = {"NVIDIA", "TESLA", "GEFORCE", "AC",    "LC",
                                                "40GB",   "80GB",  "120GB",   "480GB", "144G"};
    return words.contains(word) || word.starts_with("HBM") || word.starts_with("SXM");
}

std::vector<std::string> words_of_name(std::string name) {
    for (char& c : name)
        c = c == '-' || c == '/' ? ' ' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    std::istringstream in(name);
    std::vector<std::string> words;
    for (std::string word; in >> word;) {
        if (!is_passed_over(word)) words.push_back(word);
    }
    return words;
}

}  // namespace

// All words must agree: "RTX 4090 Laptop GPU" is another chip than "RTX 4090", and a slice of a GPU (MIG) is
// not the whole.
std::optional<double> nvidia_matmul_rate(const std::string& device, DType dtype) {
    const std::vector<std::string> words = words_of_name(device);
    const auto found = std::find_if(std::begin(data_sheets), std::end(data_sheets),
                                    [&](const Rates& rates) { return words_of_name(rates.name) == words; });
    if (found == std::end(data_sheets)) return std::nullopt;
    const double tera = dtype == DType::bf16 ? found->bf16 : dtype == DType::tf32 ? found->tf32 : found->fp32;
    return tera > 0 ? std::optional(tera * 1e12) : std::nullopt;
}
