#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "system/error.h"
#include "system/file_access.h"
#include "system/file_reader.h"
#include "system/json_text.h"
#include "system/text_encoding.h"
#include "system/unicode_nfc.h"
#include "trainer/tokenizer/special_tokens.h"
#include "trainer/tokenizer/tokenizer_files.h"
#include "trainer/tokenizer/tokenizer_json.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Files of a tokenizer that travel with a model, beside tokenizer.json or vocab.json.
constexpr const char* companions[] = {"tokenizer.json",        "vocab.json",        "merges.txt",
                                      "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json",
                                      "chat_template.jinja",   "chat_template.json"};
constexpr char more_templates[] = "additional_chat_templates";  // a folder of .jinja files

// Classes of transformers 5 for byte-level BPEs. Cohere's, Bart's and others are refused.
const std::vector<TokenizerClass>& classes() {
    using Defaults = std::map<std::string, std::string>;
    static const std::string end = gpt2_end_of_text;
    static const Defaults gpt2 = {{"bos_token", end}, {"eos_token", end}, {"unk_token", end}},
                          neox = {{"bos_token", end},
                                  {"eos_token", end},
                                  {"unk_token", end},
                                  {"pad_token", "<|padding|>"}},
                          qwen = {{"eos_token", end}, {"unk_token", end}, {"pad_token", end}};
    static const std::vector<TokenizerClass> all = {
        {.name = "GPT2Tokenizer",
         .models = {"gpt2", "codegen", "dbrx", "gpt_neo", "gptj", "jais2", "opt", "phi", "starcoder2"},
         .steps = {SplitPattern::gpt2},
         .defaults = gpt2},
        {.name = "CodeGenTokenizer", .steps = {SplitPattern::gpt2}, .defaults = gpt2},
        {.name = "GPTNeoXTokenizer",
         .models = {"gpt_neox", "falcon_mamba", "mamba", "mamba2", "mpt", "olmo", "olmoe", "rwkv", "xlstm"},
         .steps = {SplitPattern::gpt2},
         .nfc = true,
         .bare_prompts = true,
         .defaults = neox},
        {.name = "Qwen2Tokenizer",
         .models = {"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"},
         .steps = {SplitPattern::qwen},
         .nfc = true,
         .plain_tokens = true,
         .defaults = qwen}};
    return all;
}

const TokenizerClass* class_called(const std::string& name) {
    for (const TokenizerClass& own : classes())
        if (name == own.name || name == std::string(own.name) + "Fast") return &own;
    return nullptr;
}

const TokenizerClass* class_of_model(const json& type) {
    for (const TokenizerClass& own : classes())
        if (type.is_string() && own.models.contains(type.get<std::string>())) return &own;
    return nullptr;
}

std::string beside(const std::string& path, const std::string& name) {
    return fs::path(path).replace_filename(name);
}

// The JSON object in a file beside path; null if there is none.
json object_beside(const std::string& path, const char* name) {
    const std::string file = beside(path, name);
    return is_there(file) ? read_json_object(file) : json();
}

// The same with its fields in the order of the file.
nlohmann::ordered_json in_order(const std::string& path, const char* name) {
    const std::string file = beside(path, name);
    return is_there(file) ? nlohmann::ordered_json::parse(FileReader(file).text()) : nlohmann::ordered_json();
}

// root: the tokenizer.json; null if there is only a vocab.json.
TokenizerSays read_beside(const std::string& path, const json& root) {
    TokenizerSays says{.path = path,
                       .added_tokens = field(root, "added_tokens"),
                       .config = object_beside(path, "tokenizer_config.json"),
                       .map = object_beside(path, "special_tokens_map.json"),
                       .added = object_beside(path, "added_tokens.json"),
                       .config_in_order = in_order(path, "tokenizer_config.json"),
                       .map_in_order = in_order(path, "special_tokens_map.json")};
    CHECK(
        field(says.config, "auto_map").empty(),
        "{}: its tokenizer_config.json has an auto_map: the tokenizer brings its own code, which is not run",
        path);
    const std::string model = beside(path, "config.json");
    const json config = is_there(model) ? read_json(FileReader(model).text()).value : json();
    json given = field(says.config, "tokenizer_class");
    if (given.is_null()) given = field(config, "tokenizer_class");
    const json& type = field(config, "model_type");
    // transformers takes a class that the files of a Qwen 2 name for a mistake.
    if (given.is_null() || type == "qwen2") {
        says.own_class = class_of_model(type);
        if (!says.own_class && root.is_null()) says.own_class = class_called("GPT2Tokenizer");
        return says;
    }
    says.own_class = given.is_string() ? class_called(given.get<std::string>()) : nullptr;
    // With these classes tokenizer.json counts.
    static const std::set<json> general = {"PreTrainedTokenizerFast", "PreTrainedTokenizer",
                                           "TokenizersBackend", "LlamaTokenizer", "LlamaTokenizerFast"};
    CHECK(
        says.own_class || (general.contains(given) && !root.is_null()),
        "{}: is opened by transformers with the tokenizer_class {}, which {}; expected "
        "PreTrainedTokenizerFast, which takes all from a tokenizer.json, or GPT2Tokenizer, CodeGenTokenizer, "
        "GPTNeoXTokenizer or Qwen2Tokenizer",
        path, shown(given),
        general.contains(given) ? "needs a tokenizer.json" : "may make other tokens than these files say");
    return says;
}

std::vector<TextFile> files_beside(const std::string& path, const TokenizerSays& says, bool has_json) {
    std::vector<TextFile> files;
    const std::string own = has_json ? "tokenizer.json" : "vocab.json";
    for (const std::string name : companions) {
        if (!has_json && name == "tokenizer.json") continue;  // another tokenizer, since vocab.json was named
        const std::string file = name == own ? path : beside(path, name);
        if (is_there(file)) files.push_back({name, FileReader(file).text()});
    }
    if (const std::string folder = beside(path, more_templates); is_folder(folder)) {
        std::set<std::string> names;
        for (const fs::directory_entry& entry : fs::directory_iterator(folder))
            if (entry.path().extension() == ".jinja") names.insert(entry.path().filename());
        for (const std::string& name : names)
            files.push_back({fmt::format("{}/{}", more_templates, name),
                             FileReader(fmt::format("{}/{}", folder, name)).text()});
    }
    // If tokenizer_config.json names no class, that of the model in this folder counts. A copy may lie beside
    // another model, so it names the class.
    const json& named = field(says.config, "tokenizer_class");
    const bool says_class =
        named.is_string() && (!says.own_class || class_called(named.get<std::string>()) == says.own_class);
    if (!says_class && (says.own_class || !says.config.is_null())) {
        nlohmann::ordered_json config = says.config_in_order;
        config["tokenizer_class"] = says.own_class ? says.own_class->name : "PreTrainedTokenizerFast";
        std::erase_if(files, [](const TextFile& file) { return file.name == "tokenizer_config.json"; });
        files.push_back({"tokenizer_config.json", config.dump(2) + "\n"});
    }
    return files;
}

bool has_tokens_of(const Tokenizer& tokenizer, const ByteLevelVocabulary& vocabulary) {
    for (int id = 0; id < tokenizer.vocab_size(); id++) {
        const auto token = vocabulary.tokens.find(printable_bytes(tokenizer.token_bytes(id)));
        if (token == vocabulary.tokens.end() || token->second != id) return false;
    }
    return true;
}

// gpt2 or byte if it has this vocabulary and these merges, else null. A vocabulary without merges.txt is
// known by itself.
std::unique_ptr<Tokenizer> shipped_tokenizer(const ByteLevelVocabulary& vocabulary) {
    const bool any_merges = !is_there(vocabulary.merges_file);
    for (const auto& [name, size] : {std::pair{"byte", 256}, {"gpt2", gpt2_vocab_size}}) {
        if (vocabulary.tokens.size() != static_cast<size_t>(size)) continue;
        std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(name);
        if (has_tokens_of(*tokenizer, vocabulary) &&
            (any_merges || vocabulary.merges == merges_of(*tokenizer)))
            return tokenizer;
    }
    CHECK(!any_merges, "{}: has no merges.txt beside it, which a byte-level BPE needs", vocabulary.file);
    return nullptr;
}

// True if added tokens are those of gpt2 or byte: at most <|endoftext|>.
bool adds_nothing(const ByteLevelVocabulary& vocabulary) {
    return std::all_of(vocabulary.added.begin(), vocabulary.added.end(), [&](const AddedToken& token) {
        return token.content == gpt2_end_of_text && vocabulary.tokens.contains(gpt2_end_of_text) &&
               !token.single_word && !token.lstrip && !token.rstrip && !token.passed_over;
    });
}

// GPT-2's words, perhaps after the digits were separated, were the only ones before November 2026; names of
// such tokenizers have stayed the same.
void describe_steps(json& all, const ByteLevelVocabulary& vocabulary) {
    const std::vector<SplitPattern>&steps = vocabulary.steps, gpt2 = {SplitPattern::gpt2},
          each = {SplitPattern::digits, SplitPattern::gpt2},
          runs = {SplitPattern::digit_runs, SplitPattern::gpt2};
    all["digits"] = steps == each ? 1 : steps == runs ? 2 : 0;
    if (steps != gpt2 && steps != each && steps != runs && !vocabulary.merges.empty()) {
        for (const SplitPattern step : steps)
            all["steps"].push_back(step == SplitPattern::digits       ? "digits"
                                   : step == SplitPattern::digit_runs ? "digit_runs"
                                                                      : regex_of(step));
        if (steps.empty()) all["steps"] = json::array();
    }
    if (vocabulary.nfc) all["normalizer"] = "NFC";
    if (vocabulary.ignores_merges) all["ignore_merges"] = true;
}

// A checksum of everything on which the tokens of a text depend. Names of tokenizers without added tokens
// have stayed the same since before these were found in texts, and `former` names are of that time.
std::string checksum_of(const ByteLevelVocabulary& vocabulary, const json& special_tokens, bool former) {
    std::string end;
    for (const auto& [token, id] : vocabulary.tokens)
        if (id == vocabulary.end_of_text) end = token;
    json all = {{"tokens", vocabulary.tokens},
                {"merges", vocabulary.merges},
                {"special_tokens", json::object()},
                {"prefix_space", vocabulary.prefix_space}};
    describe_steps(all, vocabulary);
    for (const json& token : special_tokens)
        all["special_tokens"][token.at("content").get<std::string>()] = token.at("id");
    for (const AddedToken& token : vocabulary.added) {
        if (token.id == vocabulary.end_of_text) end = token.content;
        if (!former)
            all["added"].push_back({token.id, token.content, token.single_word, token.lstrip, token.rstrip,
                                    token.normalized, token.passed_over});
    }
    all["end_of_text"] = end;
    const std::string text = all.dump(-1, ' ', false, json::error_handler_t::replace);
    return fmt::format("bpe-{:016x}", XXH3_64bits(text.data(), text.size()));
}

// The tasks of special tokens, as numbers. Which token stands between texts is said by the tokenizer's files,
// else by the model's, else by the class or by a usual name.
void set_ids(ByteLevelVocabulary& vocabulary, const SpecialTokens& special, const ModelIds& model) {
    std::map<std::string, int> numbers;
    int size = 0;
    for (const auto& [token, id] : vocabulary.tokens) size = std::max(size, id + 1);
    for (const AddedToken& token : special.added) {
        numbers[token.content] = token.id;
        size = std::max(size, token.id + 1);
    }
    const auto task = [&](const std::map<std::string, std::string>& tasks, const char* name) {
        const auto found = tasks.find(name);
        return found == tasks.end() ? std::nullopt : std::optional(numbers.at(found->second));
    };
    vocabulary.own_ids = {
        .begin = task(special.tasks, "bos_token"), .pad = task(special.tasks, "pad_token"), .ends = {}};
    std::optional<int>& end = vocabulary.end_of_text;
    end = task(special.tasks, "eos_token");
    for (const std::vector<int>* ids : {&model.generation.ends, &model.config.ends}) {
        for (const int id : *ids)
            if (!end && id < size) end = id;
    }
    if (!end) end = task(special.defaults, "eos_token");
    for (const char* name : {gpt2_end_of_text, "</s>"})
        if (!end && numbers.contains(name)) end = numbers[name];
    if (end) vocabulary.own_ids.ends = {*end};
}

// root: the tokenizer.json; null if there is only a vocab.json.
void set_splitting(ByteLevelVocabulary& vocabulary, const TokenizerSays& says, const json& root) {
    const TokenizerClass* const own = says.own_class;
    vocabulary.prefix_space = field(says.config, "add_prefix_space") == true;
    if (root.is_null()) {
        vocabulary.steps = own->steps;
        vocabulary.nfc = own->nfc;
    } else {
        const Splitting splitting = read_splitting(root, says.path);
        vocabulary.steps = splitting.steps;
        vocabulary.nfc = read_normalizer(root, says.path);
        if (!own) {
            vocabulary.prefix_space = splitting.prefix_space;
            vocabulary.ignores_merges = field(field(root, "model"), "ignore_merges") == true;
        }
    }
    const bool like_own =
        own && vocabulary.nfc == own->nfc && (vocabulary.steps == own->steps || vocabulary.merges.empty());
    CHECK(
        !own || like_own,
        "{}: has other words than {}, with which transformers opens it, or normalizes texts otherwise; "
        "expected \"tokenizer_class\": \"PreTrainedTokenizerFast\" in tokenizer_config.json, if this file is "
        "right (beside the config.json of a qwen2 transformers passes over it)",
        says.path, own->name);
    CHECK(!vocabulary.nfc || can_normalize(),
          "{}: has the normalizer NFC, for which this program was built without utf8proc; install "
          "libutf8proc-dev and build again",
          says.path);
    CHECK(!vocabulary.nfc || !vocabulary.prefix_space,
          "{}: normalizes texts (NFC) and puts a space before them (add_prefix_space); expected one of them",
          says.path);
}

// Tokens around a prompt: by tokenizer.json, or by tokenizer_config.json if there is only a vocab.json.
void set_surrounding(ByteLevelVocabulary& vocabulary, const TokenizerSays& says, const json& root,
                     const SpecialTokens& special) {
    if (!root.is_null()) {
        if (says.own_class && says.own_class->bare_prompts) return;
        const Surrounding around = read_post_processor(root, says.path);
        vocabulary.before = around.before;
        vocabulary.after = around.after;
        return;
    }
    const auto add = [&](const char* setting, const char* task, std::vector<int>& to) {
        if (field(says.config, setting) != true) return;
        const auto named = special.tasks.find(task), usual = special.defaults.find(task);
        if (named == special.tasks.end() && usual == special.defaults.end()) return;
        const std::string& content = named == special.tasks.end() ? usual->second : named->second;
        for (const AddedToken& token : special.added)
            if (token.content == content) to.push_back(token.id);
    };
    add("add_bos_token", "bos_token", vocabulary.before);
    add("add_eos_token", "eos_token", vocabulary.after);
}

// The rest of a tokenizer whose vocabulary and merges are known. root: as above.
std::unique_ptr<Tokenizer> read_rest(ByteLevelVocabulary vocabulary, const json& root) {
    const std::string& path = vocabulary.file;
    const TokenizerSays says = read_beside(path, root);
    const SpecialTokens special = read_special_tokens(says, vocabulary.tokens);
    vocabulary.added = special.added;
    std::unique_ptr<Tokenizer> shipped = shipped_tokenizer(vocabulary);
    if (shipped) vocabulary.merges = merges_of(*shipped);
    // Files of gpt2 and byte need not describe the splitting.
    const bool is_described = root.is_null() || !field(root, "pre_tokenizer").is_null();
    if (is_described || !shipped) set_splitting(vocabulary, says, root);
    set_surrounding(vocabulary, says, root, special);
    set_ids(vocabulary, special, read_model_ids(fs::path(path).parent_path()));

    const bool like_shipped =
        shipped && !vocabulary.prefix_space && !vocabulary.nfc && !vocabulary.ignores_merges &&
        (vocabulary.merges.empty() ? vocabulary.steps.size() < 2
                                   : vocabulary.steps == std::vector{SplitPattern::gpt2});
    const std::vector<TextFile> files = files_beside(path, says, !root.is_null());
    const auto is_template = [](const TextFile& file) {
        return file.name.find("chat_template") != std::string::npos;
    };
    const bool more = says_more_than_gpt2(says) || std::ranges::any_of(files, is_template) ||
                      !vocabulary.before.empty() || !vocabulary.after.empty();
    if (like_shipped && !more && adds_nothing(vocabulary) && vocabulary.own_ids.ends == shipped->ends()) {
        const bool reads_ends =
            shipped->name() == "gpt2" && field(says.config, "split_special_tokens") == false;
        return reads_ends ? make_tokenizer("gpt2-eot") : std::move(shipped);
    }
    const std::string former = like_shipped ? std::string(shipped->name())
                                            : checksum_of(vocabulary, field(root, "added_tokens"), true);
    return std::make_unique<ByteLevelTokenizer>(checksum_of(vocabulary, json::array(), false), vocabulary,
                                                files, former);
}

}  // namespace

std::unique_ptr<Tokenizer> read_gpt2_tokenizer(const std::string& name, const std::string& encoder_path,
                                               const std::string& merges_path) {
    const json tokens = read_json_object(encoder_path);
    ByteLevelVocabulary vocabulary{.file = encoder_path,
                                   .tokens = read_vocabulary(tokens, tokens.size(), encoder_path),
                                   .merges = read_merges_file(merges_path),
                                   .merges_file = merges_path,
                                   .counts_added = name == "gpt2"};
    const auto end = vocabulary.tokens.find(gpt2_end_of_text);
    CHECK(end != vocabulary.tokens.end(), "{}: has no token {}", encoder_path, gpt2_end_of_text);
    vocabulary.end_of_text = vocabulary.begin_of_text = end->second;
    vocabulary.own_ids.ends = {end->second};
    vocabulary.added = {{.content = gpt2_end_of_text, .id = end->second, .special = true}};
    return std::make_unique<ByteLevelTokenizer>(name, vocabulary);
}

std::unique_ptr<Tokenizer> read_tokenizer_file(const std::string& path) {
    const std::string text = FileReader(path).text();
    check_fetched(path, text);
    const json root = parse_json(text);
    CHECK(
        root.is_object(),
        "{}: is not a JSON object; expected the tokenizer.json of a byte-level BPE, or its vocab.json beside "
        "merges.txt; files of SentencePiece, WordPiece and tiktoken are not read",
        path);
    ByteLevelVocabulary vocabulary{.file = path, .tokens = {}, .merges = {}, .merges_file = path};
    if (fs::path(path).filename() == "vocab.json") {
        const std::string merges = beside(path, "merges.txt");
        vocabulary.tokens = read_vocabulary(root, max_vocab_size, path);
        if (is_there(merges)) vocabulary.merges = read_merges_file(merges);
        vocabulary.merges_file = merges;
        return read_rest(std::move(vocabulary), json());
    }
    const json& model = field(root, "model");
    CHECK(field(model, "vocab").is_object(), "{}: has no model with a vocabulary", path);
    refuse_other_models(root, path);
    vocabulary.tokens = read_vocabulary(model.at("vocab"), max_vocab_size, path);
    vocabulary.merges = read_merges(field(model, "merges"), path);
    return read_rest(std::move(vocabulary), root);
}

std::string tokenizer_in(const std::string& folder) {
    for (const char* name : {"/tokenizer.json", "/vocab.json"})
        if (const std::string path = folder + name; is_there(path)) return path;
    return "";
}
