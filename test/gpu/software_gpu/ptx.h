// ptx.h: a kernel's PTX in the interpreter's form. Registers are places in a warp's register file, in
// which the values of the 32 lanes are adjacent: 32 x 2, 4 or 8 bytes; a predicate is one word with a bit
// for each lane. Constants are registers that are never written.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "software_gpu.h"

namespace software_gpu {

struct Warp;
struct Instruction;
using Handler = void (*)(Warp&, const Instruction&);

enum class Control : uint8_t { none, branch, exit, warp_sync, block_sync };
enum class Space : uint8_t { global, shared, local };

struct Instruction {
    Handler handler = nullptr;
    Control control = Control::none;
    bool guarded = false, guard_negated = false;
    uint8_t count = 1;                  // elements of a vector
    uint8_t bytes = 0;                  // of an element in memory
    bool is_signed = false;             // an element in memory
    uint8_t member_mask = 0;            // warp_sync: the operand that names the lanes, or all_lanes
    std::array<uint8_t, 16> width{};    // bytes a lane, of each operand
    std::array<int32_t, 16> operand{};  // places in the register file
    uint32_t guard = 0;                 // place of a predicate
    uint32_t target = 0;                // of a branch
    int64_t offset = 0;                 // added to an address
    uint32_t text = 0, line = 0;        // in Function
};

// The source line of an instruction, and the one into which it was inlined, and so on.
struct Place {
    unsigned file = 0, line = 0, column = 0;
    auto operator<=>(const Place&) const = default;
};
struct SourceLine {
    Place place;
    uint32_t caller = 0;  // in Function::lines, whose first stands for none
};

struct SharedVariable {
    std::string name;
    uint32_t begin = 0;
    uint32_t bytes = 0;  // 0: the dynamic block, which begins here
};

struct Function {
    std::string name;
    std::vector<Instruction> code;
    std::vector<std::byte> registers;  // initial register file of a warp, with the constants
    std::vector<SharedVariable> shared;
    uint32_t dynamic_shared = 0;  // where it begins
    uint32_t local_bytes = 0;
    std::vector<std::string> texts;     // opcodes, by Instruction::text
    std::vector<std::string> classes;   // of each text, for the counters
    std::vector<SourceLine> lines{{}};  // by Instruction::line
    std::vector<std::string> files;     // by Place::file

    // "layernorm.cuh:102, by vec.cuh:99"; "an unknown line" without -lineinfo
    std::string source(const Instruction& instruction) const;
};

// Registers that hold a thread's own numbers lie at the same places in every function.
enum class Special {
    tid_x,
    tid_y,
    tid_z,
    ntid_x,
    ntid_y,
    ntid_z,
    ctaid_x,
    ctaid_y,
    ctaid_z,
    nctaid_x,
    nctaid_y,
    nctaid_z,
    lane,
    count
};
constexpr uint32_t lanes = 32, shared_base = 0x1000, local_base = 0x100;
constexpr uint8_t all_lanes = 0xFF;
constexpr uint64_t generic_shared = uint64_t{1} << 56;
constexpr uint32_t place_of(Special special) { return static_cast<uint32_t>(special) * lanes * 4; }

// An opcode's handler (execute.cpp), and its operands' kinds in turn: h, w and d for 2, 4 and 8 bytes, p for
// a predicate.
struct Opcode {
    Handler handler = nullptr;
    std::string kinds;
};
// handler is nullptr for an unsupported opcode.
const Opcode& opcode_of(std::string_view name);
// The handlers of opcodes that need more than registers.
Handler load_handler(Space space);
Handler store_handler(Space space);
Handler parameter_handler();
Handler convert_handler(std::string_view types);  // "rn.f32.s32"
Handler pack_handler(), unpack_handler();

}  // namespace software_gpu
