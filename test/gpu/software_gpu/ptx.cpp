#include "ptx.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

namespace software_gpu {

namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    return text;
}

[[noreturn]] void fail(std::string_view what, std::string_view text) {
    text = trimmed(text);
    throw Fault(fmt::format("PTX: {}: \"{}\"", what, text.substr(0, 160)));
}

// At commas outside of braces and brackets.
std::vector<std::string_view> split(std::string_view text) {
    std::vector<std::string_view> parts;
    int depth = 0;
    size_t begin = 0;
    for (size_t i = 0; i <= text.size(); i++) {
        if (i == text.size() || (text[i] == ',' && depth == 0)) {
            const std::string_view part = trimmed(text.substr(begin, i - begin));
            if (!part.empty()) parts.push_back(part);
            begin = i + 1;
        } else {
            depth += (text[i] == '{' || text[i] == '[' || text[i] == '(') -
                     (text[i] == '}' || text[i] == ']' || text[i] == ')');
        }
    }
    return parts;
}

std::vector<std::string_view> words(std::string_view text) {
    std::vector<std::string_view> found;
    for (size_t i = 0; i < text.size();) {
        if (is_space(text[i])) {
            i++;
            continue;
        }
        size_t end = i;
        while (end < text.size() && !is_space(text[end])) end++;
        found.push_back(text.substr(i, end - i));
        i = end;
    }
    return found;
}

bool parse_number(std::string_view text, int64_t& value) {
    const bool negative = text.starts_with('-');
    if (negative) text.remove_prefix(1);
    int base = 10;
    if (text.starts_with("0x") || text.starts_with("0X")) base = 16, text.remove_prefix(2);
    if (text.ends_with('U')) text.remove_suffix(1);
    uint64_t magnitude = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), magnitude, base);
    if (text.empty() || error != std::errc() || end != text.data() + text.size()) return false;
    value = static_cast<int64_t>(negative ? 0 - magnitude : magnitude);
    return true;
}

int64_t number(std::string_view text) {
    int64_t value = 0;
    if (!parse_number(text, value)) fail("expected a number", text);
    return value;
}

// ".b32", "u64": bytes of a value; 0 for .pred
unsigned width_of_type(std::string_view type) {
    if (type.starts_with('.')) type.remove_prefix(1);
    if (type == "pred") return 0;
    int64_t bits = 0;
    if (type.size() < 2 || !parse_number(type.substr(1), bits) || bits % 8 != 0 || bits > 64)
        fail("an unknown type", type);
    return static_cast<unsigned>(bits / 8);
}

// The place of the bracket that closes the one at `open`.
size_t closing(std::string_view text, size_t open) {
    const char opens = text[open], closes = opens == '(' ? ')' : '}';
    int depth = 0;
    for (size_t i = open; i < text.size(); i++) {
        if (text[i] == '"') {
            i = text.find('"', i + 1);
            if (i == std::string_view::npos) break;
            continue;
        }
        if (text[i] == opens) depth++;
        if (text[i] == closes && --depth == 0) return i;
    }
    fail("a bracket that nothing closes", text.substr(open));
}

struct Variable {
    std::string name;
    uint32_t bytes = 0, alignment = 4;
    void* address = nullptr;  // of a .global or .const one
};

// ".shared .align 4 .b8 name[128]"; the name and its size.
Variable variable(std::string_view declaration) {
    Variable made;
    unsigned width = 0;
    for (const std::string_view word : words(declaration.substr(0, declaration.find('=')))) {
        if (word.starts_with('.')) {
            if (word == ".align" || word == ".shared" || word == ".global" || word == ".const" ||
                word == ".local" || word == ".visible" || word == ".extern" || word == ".weak" ||
                word == ".param" || word == ".ptr")
                continue;
            width = width_of_type(word);
        } else if (std::isdigit(static_cast<unsigned char>(word[0]))) {
            made.alignment = static_cast<uint32_t>(number(word));
        } else {
            const size_t bracket = word.find('[');
            made.name = word.substr(0, bracket);
            made.bytes = width;
            if (bracket != std::string_view::npos) {
                const std::string_view count = word.substr(bracket + 1, word.find(']') - bracket - 1);
                made.bytes = count.empty() ? 0 : width * static_cast<uint32_t>(number(count));
            }
        }
    }
    if (made.name.empty()) fail("a declaration without a name", declaration);
    return made;
}

struct Body {
    std::string name;
    std::string_view parameters, results, text;
};

std::string demangled(const std::string& mangled) {
    int status = 0;
    char* const text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
    std::string name = text ? text : mangled;
    std::free(text);
    // "void name<T>(float*, int)" without its return type and parameters
    const size_t end = name.rfind(')');
    if (!name.starts_with("void ") && end != std::string::npos && name.find(' ') == std::string::npos)
        return name;
    int depth = 0;
    for (size_t i = end; i != std::string::npos && i > 0; i--) {
        depth += (name[i] == ')') - (name[i] == '(');
        if (depth == 0) {
            name.resize(i);
            break;
        }
    }
    return name.starts_with("void ") ? name.substr(5) : name;
}

}  // namespace

struct Module::Content {
    std::string text;
    Memory* memory;
    std::unordered_map<std::string, Variable> shared, global;
    std::unordered_map<std::string, Body> functions;
    std::unordered_map<std::string, Kernel> kernels;
    std::unordered_map<std::string, std::string_view> kernel_bodies;
    std::vector<std::string> files;

    std::unordered_map<std::string, std::string_view> parameters_of;

    void read();
    size_t read_function(size_t begin);
    void read_kernel(std::string_view header, std::string_view parameters, std::string_view body);
    void put(Variable& made, std::string_view declaration);
};

namespace {

// Makes the code of one kernel. Calls of functions become copies of their bodies.
class Decoder {
public:
    Decoder(const Module::Content& module, Kernel& kernel) : module_(module), kernel_(kernel) {
        function_.name = kernel.name;
        function_.files = module.files;
        reserve(place_of(Special::count));
        auto* const lane = reinterpret_cast<uint32_t*>(function_.registers.data() + place_of(Special::lane));
        for (uint32_t i = 0; i < lanes; i++) lane[i] = i;
    }

    Function decode(std::string_view body, std::string_view parameters) {
        const auto names = split(parameters);
        for (size_t i = 0; i < names.size(); i++)
            parameter_offsets_[variable(names[i]).name] = kernel_.parameters[i].offset;
        run(body, {});
        Instruction exit;
        exit.control = Control::exit;
        exit.text = text_index("ret");
        emit(exit);
        function_.dynamic_shared = (next_shared_ + 1023) / 1024 * 1024;
        for (const auto& [place, width] : uses_of_dynamic_) fill(place, width, function_.dynamic_shared);
        return std::move(function_);
    }

private:
    struct Register {
        uint32_t place;
        unsigned width;  // 0: a predicate
    };
    struct Scope {
        std::unordered_map<std::string, Register> registers;
        std::vector<std::pair<std::string, std::pair<Register, unsigned>>> families;  // "%r" with its count
        std::unordered_map<std::string, uint32_t> labels;
        std::unordered_map<std::string, Register> call_parameters;  // by .param name
        std::unordered_map<std::string, uint32_t> locals;
        std::vector<std::pair<uint32_t, std::string>> branches;  // to a label; "": to the end of the function
        bool is_function = false;
    };

    uint32_t reserve(size_t bytes) {
        const size_t at = (function_.registers.size() + 63) / 64 * 64;
        function_.registers.resize(at + bytes, std::byte{0xCD});
        return static_cast<uint32_t>(at);
    }
    Register fresh(unsigned width) { return {reserve(width == 0 ? 4 : width * lanes), width}; }
    void fill(uint32_t place, unsigned width, uint64_t value) {
        for (uint32_t lane = 0; lane < lanes; lane++)
            std::memcpy(function_.registers.data() + place + lane * width, &value, width);
    }

    uint32_t constant(unsigned width, uint64_t value) {
        if (width < 8) value &= (uint64_t{1} << (8 * width)) - 1;
        const auto [found, is_new] = constants_.try_emplace({width, value}, 0);
        if (is_new) {
            found->second = reserve(width * lanes);
            fill(found->second, width, value);
        }
        return found->second;
    }

    const Register* find_register(const std::string& name) {
        for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
            const auto found = scope->registers.find(name);
            if (found != scope->registers.end()) return &found->second;
            if (name[0] == '%') {
                const size_t digit = name.find_first_of("0123456789");
                for (const auto& [prefix, family] : scope->families) {
                    int64_t index = 0;
                    if (digit == std::string::npos || name.compare(0, digit, prefix) != 0) continue;
                    if (!parse_number(std::string_view(name).substr(digit), index) || index >= family.second)
                        continue;
                    return &scope->registers.emplace(name, fresh(family.first.width)).first->second;
                }
            }
            if (scope->is_function) break;  // a copied function sees nothing of its caller
        }
        return nullptr;
    }

    uint32_t shared_place(const std::string& name, bool& is_dynamic) {
        const auto own = own_shared_.find(name);
        const Variable& made = own != own_shared_.end() ? own->second : module_.shared.at(name);
        is_dynamic = made.bytes == 0;
        if (is_dynamic) return 0;
        for (const SharedVariable& known : function_.shared) {
            if (known.name == name) return known.begin;
        }
        // A gap between two of them is unused, so that overruns are found.
        const uint32_t begin = (next_shared_ + 127) / 128 * 128;
        function_.shared.push_back({name, begin, made.bytes});
        next_shared_ = begin + made.bytes + 128;
        kernel_.static_shared_bytes =
            (kernel_.static_shared_bytes + made.alignment - 1) / made.alignment * made.alignment + made.bytes;
        return begin;
    }

    // A register, a number, or the address of a variable. Returns its place. width: in, the width that the
    // instruction needs; out, the register's.
    uint32_t value(std::string_view text, unsigned& width) {
        static const std::unordered_map<std::string_view, Special> specials = {
            {"%tid.x", Special::tid_x},       {"%tid.y", Special::tid_y},
            {"%tid.z", Special::tid_z},       {"%ntid.x", Special::ntid_x},
            {"%ntid.y", Special::ntid_y},     {"%ntid.z", Special::ntid_z},
            {"%ctaid.x", Special::ctaid_x},   {"%ctaid.y", Special::ctaid_y},
            {"%ctaid.z", Special::ctaid_z},   {"%nctaid.x", Special::nctaid_x},
            {"%nctaid.y", Special::nctaid_y}, {"%nctaid.z", Special::nctaid_z},
            {"%laneid", Special::lane}};
        if (const auto special = specials.find(text); special != specials.end()) {
            width = 4;
            return place_of(special->second);
        }
        const std::string name(text);
        if (const Register* const known = find_register(name)) {
            width = known->width;
            return known->place;
        }
        if (text.starts_with("0f") || text.starts_with("0F") || text.starts_with("0d") ||
            text.starts_with("0D")) {
            uint64_t bits = 0;
            std::from_chars(text.data() + 2, text.data() + text.size(), bits, 16);
            width = text[1] == 'f' || text[1] == 'F' ? 4 : 8;
            return constant(width, bits);
        }
        int64_t literal = 0;
        if (parse_number(text, literal)) {
            if (width == 0) {  // a predicate
                const auto place = reserve(4);
                const uint32_t bits = literal ? ~0u : 0u;
                std::memcpy(function_.registers.data() + place, &bits, 4);
                return place;
            }
            return constant(width, static_cast<uint64_t>(literal));
        }
        if (width == 0) width = 8;
        if (module_.shared.count(name) || own_shared_.count(name)) {
            bool is_dynamic = false;
            const uint32_t begin = shared_place(name, is_dynamic);
            if (!is_dynamic) return constant(width, begin);
            const uint32_t place = reserve(width * lanes);
            uses_of_dynamic_.emplace_back(place, width);
            return place;
        }
        if (const auto found = module_.global.find(name); found != module_.global.end())
            return constant(8, reinterpret_cast<uint64_t>(found->second.address));
        for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
            if (const auto local = scope->locals.find(name); local != scope->locals.end())
                return constant(width, local->second);
        }
        fail("an operand that nothing declares", text);
    }

    void set(Instruction& instruction, size_t index, std::string_view text, unsigned width) {
        if (index >= instruction.operand.size()) fail("too many operands", text);
        instruction.operand[index] = static_cast<int32_t>(value(text, width));
        instruction.width[index] = static_cast<uint8_t>(width);
    }

    // "[%rd1+16]": the register or variable, and the offset.
    std::pair<std::string_view, int64_t> address(std::string_view text) {
        text = trimmed(text);
        if (!text.starts_with('[') || !text.ends_with(']')) fail("expected an address", text);
        text = trimmed(text.substr(1, text.size() - 2));
        const size_t plus = text.find('+');
        if (plus == std::string_view::npos) return {text, 0};
        return {trimmed(text.substr(0, plus)), number(trimmed(text.substr(plus + 1)))};
    }

    static std::vector<std::string_view> elements(std::string_view text) {
        if (text.starts_with('{')) return split(text.substr(1, text.size() - 2));
        return {text};
    }

    uint32_t text_index(std::string_view opcode) {
        const auto [found, is_new] =
            texts_.try_emplace(std::string(opcode), static_cast<uint32_t>(function_.texts.size()));
        if (is_new) function_.texts.emplace_back(opcode);
        return found->second;
    }

    void emit(Instruction instruction) {
        instruction.line = line_;
        function_.code.push_back(instruction);
    }
    // The innermost copied function, or the kernel itself; labels belong to it.
    Scope& function_scope() {
        for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
            if (scope->is_function) return *scope;
        }
        return scopes_.front();
    }

    // The statements of a body, in a scope of its own that has the arguments of its call.
    void run(std::string_view body, std::unordered_map<std::string, Register> arguments) {
        Scope whole;
        whole.is_function = true;
        whole.call_parameters = std::move(arguments);
        scopes_.push_back(std::move(whole));
        const size_t depth = scopes_.size();
        for (size_t i = 0; i < body.size();) {
            const char c = body[i];
            if (is_space(c) || c == ';') {
                i++;
            } else if (body.compare(i, 2, "//") == 0) {
                i = std::min(body.find('\n', i), body.size());
            } else if (c == '{') {
                scopes_.emplace_back();
                i++;
            } else if (c == '}') {
                if (scopes_.size() <= depth) fail("a brace that closes nothing", body.substr(i));
                scopes_.pop_back();
                i++;
            } else if (body.compare(i, 5, ".loc ") == 0 || body.compare(i, 5, ".loc\t") == 0) {
                const size_t end = std::min(body.find('\n', i), body.size());
                note_line(body.substr(i, end - i));
                i = end;
            } else {
                i = statement(body, i);
            }
        }
        const auto end = static_cast<uint32_t>(function_.code.size());
        Scope& scope = scopes_.back();
        for (const auto& [index, label] : scope.branches) {
            const auto found = scope.labels.find(label);
            if (!label.empty() && found == scope.labels.end())
                fail("a branch to a label that is not there", label);
            function_.code[index].target = label.empty() ? end : found->second;
        }
        scopes_.pop_back();
    }

    size_t statement(std::string_view body, size_t begin) {
        size_t end = begin;
        int depth = 0;
        for (; end < body.size(); end++) {
            if (body[end] == ':' && depth == 0 && end + 1 < body.size() && body[end + 1] != ':' &&
                body[end - 1] != ':') {
                function_scope().labels[std::string(trimmed(body.substr(begin, end - begin)))] =
                    static_cast<uint32_t>(function_.code.size());
                return end + 1;
            }
            if (body[end] == '"') end = body.find('"', end + 1);
            if (body[end] == '{') depth++;
            if (body[end] == '}') depth--;
            if (body[end] == ';') break;
        }
        const std::string_view text = trimmed(body.substr(begin, end - begin));
        if (text.starts_with('.')) directive(text);
        else instruction(text);
        return end + 1;
    }

    void note_line(std::string_view text) {
        // .loc 2 34 5, function_name $L, inlined_at 1 102 52
        // Where the place behind inlined_at was inlined itself, the last .loc of that place says into what.
        const auto parts = words(text);
        const auto place_at = [&](size_t i) -> Place {
            if (i + 2 >= parts.size()) return {};
            const auto part = [&](size_t k) {
                const std::string_view word = parts[i + k];
                return static_cast<unsigned>(number(word.substr(0, word.find(','))));
            };
            return {part(0), part(1), part(2)};
        };
        SourceLine line{place_at(1)};
        if (line.place.line == 0) return;
        const auto marker = std::find(parts.begin(), parts.end(), "inlined_at");
        const Place into = place_at(static_cast<size_t>(marker - parts.begin()) + 1);
        if (into.line != 0) {
            size_t caller = function_.lines.size() - 1;
            while (caller > 0 && function_.lines[caller].place != into) caller--;
            if (caller == 0) {
                caller = function_.lines.size();
                function_.lines.push_back({into});
            }
            line.caller = static_cast<uint32_t>(caller);
        }
        function_.lines.push_back(line);
        line_ = static_cast<uint32_t>(function_.lines.size() - 1);
    }

    void directive(std::string_view text) {
        Scope& scope = scopes_.back();
        if (text.starts_with(".reg")) {
            const std::string_view rest = trimmed(text.substr(4));
            const size_t gap = rest.find_first_of(" \t");
            const unsigned width = width_of_type(rest.substr(0, gap));
            for (const std::string_view name : split(rest.substr(gap))) {
                const size_t bracket = name.find('<');
                if (bracket == std::string_view::npos) {
                    scope.registers.insert_or_assign(std::string(name), fresh(width));
                } else {
                    const int64_t count = number(name.substr(bracket + 1, name.find('>') - bracket - 1));
                    scope.families.push_back({std::string(name.substr(0, bracket)),
                                              {Register{0, width}, static_cast<unsigned>(count)}});
                }
            }
        } else if (text.starts_with(".param")) {
            const Variable made = variable(text);
            if (made.bytes > 8) fail("an argument of a function that is no number", text);
            scope.call_parameters[made.name] = fresh(made.bytes);
        } else if (text.starts_with(".shared")) {
            const Variable made = variable(text);
            own_shared_[made.name] = made;
        } else if (text.starts_with(".local")) {
            const Variable made = variable(text);
            const uint32_t begin =
                (function_.local_bytes + made.alignment - 1) / made.alignment * made.alignment;
            scope.locals[made.name] = local_base + begin;
            function_.local_bytes = begin + made.bytes;
        } else if (!text.starts_with(".pragma")) {
            fail("an unknown directive", text);
        }
    }

    const Register* call_parameter(std::string_view name) {
        for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
            const auto found = scope->call_parameters.find(std::string(name));
            if (found != scope->call_parameters.end()) return &found->second;
            if (scope->is_function) break;
        }
        return nullptr;
    }

    // call.uni (result), function, (a, b): its body, over registers of its own.
    void call(std::string_view operands) {
        const auto parts = split(operands);
        const bool returns = !parts.empty() && parts[0].starts_with('(');
        const size_t at = returns ? 1 : 0;
        if (parts.size() <= at) fail("an unknown form of call", operands);
        const auto found = module_.functions.find(std::string(parts[at]));
        if (found == module_.functions.end() || found->second.text.empty())
            fail("a call of a function that is not there", parts[at]);
        if (calls_ == 64) fail("a call that calls itself", parts[at]);
        const Body& callee = found->second;
        std::unordered_map<std::string, Register> arguments;
        const auto bind = [&](std::string_view formal, std::string_view given) {
            const auto names = split(formal), values = split(given);
            if (names.size() != values.size()) fail("a call with another number of arguments", operands);
            for (size_t i = 0; i < names.size(); i++) {
                const Register* const known = call_parameter(values[i]);
                if (!known) fail("an argument that nothing declares", values[i]);
                arguments[variable(names[i]).name] = *known;
            }
        };
        const auto inside = [](std::string_view text) { return text.substr(1, text.size() - 2); };
        if (returns) bind(callee.results, inside(parts[0]));
        if (parts.size() > at + 1) bind(callee.parameters, inside(parts[at + 1]));
        calls_++;
        run(callee.text, std::move(arguments));
        calls_--;
    }

    void branch(Instruction made, std::string_view label) {
        made.control = Control::branch;
        Scope& scope = function_scope();
        scope.branches.emplace_back(static_cast<uint32_t>(function_.code.size()), std::string(label));
        emit(made);
    }

    // ld.global.nc.v4.f32 {a, b, c, d}, [address+16]; st has them the other way round
    void memory(Instruction made, std::string_view opcode, std::string_view operands) {
        const bool loads = opcode.starts_with("ld.");
        std::string_view space, type, rest = opcode.substr(3);
        for (size_t dot = 0; dot != std::string_view::npos;) {
            dot = rest.find('.');
            const std::string_view word = rest.substr(0, dot);
            if (dot != std::string_view::npos) rest.remove_prefix(dot + 1);
            if (word == "global" || word == "shared" || word == "local" || word == "param") space = word;
            else if (word == "v2" || word == "v4" || word == "v8")
                made.count = static_cast<uint8_t>(word[1] - '0');
            else if (dot == std::string_view::npos) type = word;
            else if (word != "nc" && word != "cs" && word != "cg" && word != "ca")
                fail("an unknown kind of access", opcode);
        }
        const auto parts = split(operands);
        if (parts.size() != 2 || type.empty()) fail("an unknown form of access", operands);
        made.bytes = static_cast<uint8_t>(width_of_type(type));
        made.is_signed = type[0] == 's';
        const auto registers = elements(loads ? parts[0] : parts[1]);
        if (registers.size() != made.count) fail("a vector of another length", operands);
        const auto [base, offset] = address(loads ? parts[1] : parts[0]);
        made.offset = offset;
        for (size_t i = 0; i < registers.size(); i++) set(made, i + 1, registers[i], made.bytes);
        if (space == "param") {
            if (const Register* const bound =
                    call_parameter(base)) {  // of a function, whose arguments are registers
                Instruction move = made;
                const unsigned width = bound->width;
                move.operand[0] = loads ? made.operand[1] : static_cast<int32_t>(bound->place);
                move.operand[1] = loads ? static_cast<int32_t>(bound->place) : made.operand[1];
                if (made.width[1] != width || made.count != 1 || offset != 0)
                    fail("an argument of another size", operands);
                move.handler = opcode_of(width == 8 ? "mov.b64" : width == 4 ? "mov.b32" : "mov.b16").handler;
                return emit(move);
            }
            const auto known = parameter_offsets_.find(std::string(base));
            if (known == parameter_offsets_.end() || !loads)
                fail("a parameter that nothing declares", operands);
            made.offset += static_cast<int64_t>(known->second);
            made.handler = parameter_handler();
            return emit(made);
        }
        if (space.empty()) fail("an access to generic memory", opcode);
        const Space where = space == "global"   ? Space::global
                            : space == "shared" ? Space::shared
                                                : Space::local;
        set(made, 0, base, where == Space::shared ? 4 : 8);
        made.handler = loads ? load_handler(where) : store_handler(where);
        emit(made);
    }

    // mov.b32 {low, high}, %r1 and mov.b32 %r1, {low, high}
    void pack(Instruction made, std::string_view destination, std::string_view source) {
        const bool packs = source.starts_with('{');
        const auto parts = elements(packs ? source : destination);
        made.count = static_cast<uint8_t>(parts.size());
        set(made, 0, packs ? destination : source, 4);
        for (size_t i = 0; i < parts.size(); i++) set(made, i + 1, parts[i], made.width[0] / made.count);
        made.handler = packs ? pack_handler() : unpack_handler();
        emit(made);
    }

    // Operands one by one: the elements of {a, b}, both sides of a|b, and the base of [base+offset], whose
    // offset goes to `made`.
    std::vector<std::string_view> flat_operands(Instruction& made, std::string_view opcode,
                                                const std::vector<std::string_view>& parts,
                                                std::string_view text) {
        std::vector<std::string_view> flat;
        for (const std::string_view part : parts) {
            const size_t bar = part.find('|');
            if (part.starts_with('{')) {
                for (const std::string_view element : elements(part)) flat.push_back(element);
            } else if (bar != std::string_view::npos) {
                flat.push_back(part.substr(0, bar));
                flat.push_back(part.substr(bar + 1));
            } else if (part.starts_with('[')) {
                const auto [base, offset] = address(part);
                if (offset != 0 && opcode.starts_with("cp.async")) fail("an offset in a copy", text);
                made.offset += offset;
                flat.push_back(base);
            } else {
                flat.push_back(part);
            }
        }
        return flat;
    }

    void instruction(std::string_view text) {
        Instruction made;
        if (text.starts_with('@')) {
            const size_t gap = text.find_first_of(" \t");
            std::string_view name = text.substr(1, gap - 1);
            made.guard_negated = name.starts_with('!');
            if (made.guard_negated) name.remove_prefix(1);
            const Register* const guard = find_register(std::string(name));
            if (!guard || guard->width != 0) fail("a guard that is no predicate", text);
            made.guarded = true;
            made.guard = guard->place;
            text = trimmed(text.substr(gap));
        }
        const size_t gap = std::min(text.find_first_of(" \t\n"), text.size());
        const std::string_view opcode = text.substr(0, gap), operands = trimmed(text.substr(gap));
        made.text = text_index(opcode);
        if (opcode == "bra" || opcode == "bra.uni") return branch(made, operands);
        if (opcode == "ret" || opcode == "exit") {
            if (calls_ > 0 && opcode == "ret") return branch(made, "");
            made.control = Control::exit;
            return emit(made);
        }
        if (opcode == "call.uni" || opcode == "call") {
            if (made.guarded) fail("a guarded call", text);
            return call(operands);
        }
        if (opcode.starts_with("ld.") || opcode.starts_with("st.")) return memory(made, opcode, operands);
        const auto parts = split(operands);
        if (opcode.starts_with("mov.") && parts.size() == 2 &&
            (parts[0].starts_with('{') || parts[1].starts_with('{')))
            return pack(made, parts[0], parts[1]);
        if (opcode.starts_with("cvt.") && !opcode.starts_with("cvt.rn.bf16x2")) {
            made.handler = convert_handler(opcode.substr(4));
            if (!made.handler || parts.size() != 2) fail("an unknown conversion", text);
            const std::string_view source_type = opcode.substr(opcode.rfind('.') + 1);
            set(made, 0, parts[0], 4);
            set(made, 1, parts[1], width_of_type(source_type == "bf16" ? "b16" : source_type));
            return emit(made);
        }
        const Opcode& known = opcode_of(opcode);
        if (!known.handler) fail("the software GPU does not know this opcode", text);
        made.handler = known.handler;
        if (opcode.starts_with("shfl.") || opcode.starts_with("bar.warp."))
            made.control = Control::warp_sync, made.member_mask = opcode[0] == 's' ? 5 : 0;
        if (opcode.starts_with("mma.") || opcode.starts_with("ldmatrix."))
            made.control = Control::warp_sync, made.member_mask = all_lanes;
        if (opcode == "bar.sync") made.control = Control::block_sync;
        std::vector<std::string_view> flat = flat_operands(made, opcode, parts, text);
        if (opcode.starts_with("shfl.") && flat.size() == 5)
            flat.insert(flat.begin() + 1, "");  // without the predicate
        if (flat.size() != known.kinds.size()) fail("another number of operands", text);
        for (size_t i = 0; i < flat.size(); i++) {
            const unsigned wanted = known.kinds[i] == 'h'   ? 2
                                    : known.kinds[i] == 'w' ? 4
                                    : known.kinds[i] == 'd' ? 8
                                                            : 0;
            if (flat[i].empty()) {
                made.operand[i] = static_cast<int32_t>(reserve(4));
                continue;
            }
            set(made, i, flat[i], wanted);
            if (made.width[i] != wanted) fail("an operand of another width", text);
        }
        emit(made);
    }

    const Module::Content& module_;
    Kernel& kernel_;
    Function function_;
    std::vector<Scope> scopes_;
    std::unordered_map<std::string, Variable> own_shared_;  // declared in the kernel's body
    std::unordered_map<std::string, size_t> parameter_offsets_;
    std::map<std::pair<unsigned, uint64_t>, uint32_t> constants_;
    std::unordered_map<std::string, uint32_t> texts_;
    std::vector<std::pair<uint32_t, unsigned>>
        uses_of_dynamic_;  // registers that hold where the dynamic block begins
    uint32_t next_shared_ = shared_base, line_ = 0;
    int calls_ = 0;
};

std::string class_of(std::string_view opcode) {
    const auto begins = [&](std::string_view with) { return opcode.starts_with(with); };
    const auto ends = [&](std::string_view with) { return opcode.ends_with(with); };
    if (begins("mma.")) return "tensor core";
    if (begins("ldmatrix.") || begins("ld.shared")) return "shared load";
    if (begins("ld.global")) return "global load";
    if (begins("st.global")) return "global store";
    if (begins("st.shared")) return "shared store";
    if (begins("ld.local") || begins("st.local")) return "local";
    if (begins("ld.param") || begins("mov.") || begins("cvta.")) return "move";
    if (begins("cp.async")) return "asynchronous copy";
    if (begins("atom.") || begins("red.")) return "atomic";
    if (begins("shfl.")) return "shuffle";
    if (begins("bar.") || begins("membar.")) return "barrier";
    if (begins("bra") || begins("ret") || begins("call")) return "control";
    if (begins("cvt.")) return "conversion";
    if (opcode.find(".approx") != std::string_view::npos) return "special function";
    if (begins("setp.") || begins("selp.") || ends(".pred")) return "predicate";
    if (ends(".f32")) return "fp32";
    if (ends(".f64")) return "fp64";
    return "integer";
}

}  // namespace

std::string Function::source(const Instruction& instruction) const {
    const auto name = [&](Place place) {
        std::string file = place.file < files.size() ? files[place.file] : "";
        file = file.substr(file.rfind('/') + 1);
        return fmt::format("{}:{}", file, place.line);
    };
    const SourceLine* line = &lines[instruction.line];
    if (line->place.line == 0) return "an unknown line";
    std::string places = name(line->place);
    while (line->caller != 0) {
        line = &lines[line->caller];
        places += ", called at " + name(line->place);
    }
    return places;
}

void Module::Content::put(Variable& made, std::string_view declaration) {
    made.address = memory->allocate(made.bytes);
    const size_t equals = declaration.find('=');
    if (!made.address) fail("no memory for a variable", declaration);
    std::memset(made.address, 0, made.bytes);  // PTX: variables without a value are zero
    if (equals != std::string_view::npos) {
        const size_t brace = declaration.find('{', equals);
        if (brace == std::string_view::npos) fail("a variable whose value is no list", declaration);
        auto* to = static_cast<uint8_t*>(made.address);
        for (const std::string_view byte :
             split(declaration.substr(brace + 1, declaration.rfind('}') - brace - 1)))
            *to++ = static_cast<uint8_t>(number(byte));
    }
    memory->note_write(made.address, made.bytes, made.name);
}

void Module::Content::read_kernel(std::string_view header, std::string_view parameters,
                                  std::string_view body) {
    Kernel kernel;
    kernel.mangled = std::string(words(header).back());
    kernel.name = demangled(kernel.mangled);
    const std::string key = kernel.mangled;
    kernel_bodies[key] = body;
    // The launch bounds stand between the parameters and the body: .maxntid 256, 1, 1
    const char* const from = parameters.data() + parameters.size();
    const std::string_view between(from, static_cast<size_t>(body.data() - from));
    if (const size_t at = between.find(".maxntid"); at != std::string_view::npos) {
        std::string_view counts = between.substr(at + 8);
        counts = counts.substr(0, std::min(counts.find_first_of(".{"), counts.size()));
        kernel.max_threads = 1;
        for (const std::string_view count : split(counts))
            kernel.max_threads *= static_cast<unsigned>(number(count.substr(0, count.find_first_of(" \n"))));
    }
    Kernel& made = kernels.emplace(key, std::move(kernel)).first->second;
    parameters_of[key] = parameters;
    size_t offset = 0;
    for (const std::string_view declared : split(parameters)) {
        const Variable parameter = variable(declared);
        // .align of a pointer is that of its target; a number is aligned to its size
        const bool is_pointer = declared.find(".ptr") != std::string_view::npos;
        const size_t alignment = is_pointer || declared.find(".align") == std::string_view::npos
                                     ? parameter.bytes
                                     : parameter.alignment;
        offset = (offset + alignment - 1) / alignment * alignment;
        made.parameters.push_back({offset, parameter.bytes});
        offset += parameter.bytes;
    }
    made.parameter_bytes = offset;
}

void Module::Content::read() {
    const std::string_view all = text;
    for (size_t i = 0; i < all.size();) {
        if (is_space(all[i]) || all[i] == ';' || all[i] == '\0') {
            i++;
            continue;
        }
        const auto line_end = [&] { return std::min(all.find('\n', i), all.size()); };
        if (all.compare(i, 2, "//") == 0 || all.compare(i, 8, ".version") == 0 ||
            all.compare(i, 7, ".target") == 0 || all.compare(i, 13, ".address_size") == 0) {
            i = line_end();
        } else if (all.compare(i, 5, ".file") == 0) {
            const auto parts = words(all.substr(i, line_end() - i));
            if (parts.size() < 3) fail("a file without a name", all.substr(i));
            const auto index = static_cast<size_t>(number(parts[1]));
            if (index > 100000) fail("a file's number", parts[1]);
            if (files.size() <= index) files.resize(index + 1);
            files[index] = std::string(parts[2].substr(1, parts[2].size() - 2));
            i = line_end();
        } else if (all.compare(i, 8, ".section") == 0) {
            i = closing(all, all.find('{', i)) + 1;
        } else {
            // .visible .entry name(...) ... {...}, .func (...) name (...) {...} or ;, .shared ...;
            const size_t stop = all.find_first_of("(;{", i);
            if (stop == std::string_view::npos) fail("a declaration without an end", all.substr(i));
            const std::string_view head = all.substr(i, stop - i);
            if (head.find(".entry") != std::string_view::npos) {
                if (all[stop] != '(') fail("a kernel without parameters", head);
                const size_t after = closing(all, stop), open = all.find('{', after),
                             end = closing(all, open);
                read_kernel(head, all.substr(stop + 1, after - stop - 1),
                            all.substr(open + 1, end - open - 1));
                i = end + 1;
            } else if (head.find(".func") != std::string_view::npos) {
                i = read_function(i);
            } else {
                const size_t end = std::min(all.find(';', i), all.size());
                const std::string_view declaration = all.substr(i, end - i);
                Variable made = variable(declaration);
                const std::string name = made.name;
                if (head.find(".shared") != std::string_view::npos) {
                    shared[name] = made;
                } else if (head.find(".global") != std::string_view::npos ||
                           head.find(".const") != std::string_view::npos) {
                    put(made, declaration);
                    global[name] = made;
                } else {
                    fail("an unknown declaration", declaration);
                }
                i = end + 1;
            }
        }
    }
}

// .func (results) name (parameters) {body}; without a body it is only a declaration
size_t Module::Content::read_function(size_t begin) {
    const std::string_view all = text;
    Body made;
    size_t i = begin + std::string_view(all.substr(begin)).find(".func") + 5;
    while (is_space(all[i])) i++;
    if (all[i] == '(') {
        const size_t end = closing(all, i);
        made.results = all.substr(i + 1, end - i - 1);
        i = end + 1;
    }
    const size_t open = all.find_first_of("(;{", i);
    made.name = std::string(trimmed(all.substr(i, open - i)));
    i = open;
    if (all[i] == '(') {
        const size_t end = closing(all, i);
        made.parameters = all.substr(i + 1, end - i - 1);
        i = end + 1;
    }
    const size_t next = all.find_first_of(";{", i);
    if (next == std::string_view::npos) fail("a function without an end", all.substr(begin));
    if (all[next] == ';') return next + 1;
    const size_t end = closing(all, next);
    made.text = all.substr(next + 1, end - next - 1);
    const std::string name = made.name;
    functions[name] = std::move(made);
    return end + 1;
}

Module::Module(std::string_view ptx, Memory& memory) : content_(std::make_unique<Content>()) {
    content_->text = std::string(ptx);
    content_->memory = &memory;
    content_->read();
}
Module::Module(Module&&) noexcept = default;
Module::~Module() = default;

Kernel* Module::find(std::string_view mangled) {
    const auto found = content_->kernels.find(std::string(mangled));
    if (found == content_->kernels.end()) return nullptr;
    Kernel& kernel = found->second;
    if (!kernel.function) {  // decoded at its first use
        Decoder decoder(*content_, kernel);
        auto made = std::make_shared<Function>(
            decoder.decode(content_->kernel_bodies[kernel.mangled], content_->parameters_of[kernel.mangled]));
        for (const std::string& text : made->texts) made->classes.push_back(class_of(text));
        kernel.function = std::move(made);
        kernel.max_dynamic_shared_bytes -=
            std::min(kernel.max_dynamic_shared_bytes, kernel.static_shared_bytes);
    }
    return &kernel;
}

std::vector<Kernel*> Module::kernels() {
    std::vector<Kernel*> all;
    for (const auto& [name, kernel] : content_->kernels) all.push_back(find(name));
    return all;
}

std::vector<std::byte> pack_arguments(const Kernel& kernel, void* const* arguments) {
    std::vector<std::byte> packed(kernel.parameter_bytes);
    for (size_t i = 0; i < kernel.parameters.size(); i++)
        std::memcpy(packed.data() + kernel.parameters[i].offset, arguments[i], kernel.parameters[i].bytes);
    return packed;
}

}  // namespace software_gpu
