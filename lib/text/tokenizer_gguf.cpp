#include "oscar/checkpoint/gguf.h"
#include "oscar/core/error.h"
#include "text/tokenizer_parts.h"

namespace oscar {

namespace {

constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  for (const std::string_view candidate : words) {
    if (word == candidate) return true;
  }
  return false;
}

/// The pre-tokenizers that llama.cpp's converter names after the models that have them.
void set_pre_tokenizer(std::string_view name, TokenizerParts& parts) {
  const auto split = [&](const char* pattern) {
    parts.pre_tokenizer.add_split(pattern, SplitBehavior::isolated, false, parts.source);
  };
  if (is_one_of(name, {"gpt-2", "phi-2"})) {
    split(kGpt2Pattern);
  } else if (is_one_of(name, {"smollm", "starcoder", "refact", "command-r"})) {
    split(R"(\p{N})");
    split(kGpt2Pattern);
  } else if (is_one_of(name, {"llama-bpe", "llama3", "llama-v3"})) {
    split(kLlama3Pattern);
    parts.ignore_merges = true;
  } else if (is_one_of(name, {"qwen2", "deepseek-r1-qwen"})) {
    split(kQwen2Pattern);
    parts.nfc = true;
  } else {
    fail_input(
        "{}: the pre-tokenizer \"{}\" is not known; gpt-2, phi-2, smollm, starcoder, refact, "
        "command-r, "
        "llama-bpe, qwen2 and deepseek-r1-qwen are. Use the model's Hugging Face folder, whose "
        "tokenizer.json "
        "says how text is cut",
        parts.source, name);
  }
}

constexpr std::int64_t kControl = 3, kUserDefined = 4;

}  // namespace

TokenizerParts read_gguf_vocabulary(const std::filesystem::path& path) {
  const GgufFile file(path);
  TokenizerParts parts;
  parts.source = path.string();
  const auto model = file.get<std::string_view>("tokenizer.ggml.model");
  if (model != "gpt2") {
    fail_input("{}: the tokenizer \"{}\" is not supported; byte-level BPE (\"gpt2\") is",
               parts.source, model);
  }
  set_pre_tokenizer(file.find_as<std::string_view>("tokenizer.ggml.pre").value_or("default"),
                    parts);
  const auto& tokens = file.get<std::vector<std::string_view>>("tokenizer.ggml.tokens");
  const auto types = file.find_as<std::vector<std::int64_t>>("tokenizer.ggml.token_type")
                         .value_or(std::vector<std::int64_t>{});
  if (!types.empty() && types.size() != tokens.size()) {
    fail_input("{}: {} tokens, but {} token types", parts.source, tokens.size(), types.size());
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    parts.vocabulary.emplace_back(tokens[i], id);
    const std::int64_t type = types.empty() ? 1 : types[i];
    if (type == kControl || type == kUserDefined) {
      parts.added.push_back({id, std::string(tokens[i]), type == kControl});
    }
  }
  for (const std::string_view merge :
       file.get<std::vector<std::string_view>>("tokenizer.ggml.merges")) {
    // Spellings have no spaces, but a first token may begin with one in old files.
    const auto space = merge.find(' ', 1);
    if (space == std::string_view::npos)
      fail_input("{}: the merge \"{}\" is not two tokens", parts.source, merge);
    parts.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  const auto name_of_token = [&](const char* key) -> std::string {
    const auto id = file.find_as<std::int64_t>(key);
    if (!id) return "";
    if (*id < 0 || static_cast<std::size_t>(*id) >= tokens.size()) {
      fail_input("{}: {} is {}, but there are {} tokens", parts.source, key, *id, tokens.size());
    }
    return std::string(tokens[static_cast<std::size_t>(*id)]);
  };
  parts.bos_token = name_of_token("tokenizer.ggml.bos_token_id");
  parts.eos_token = name_of_token("tokenizer.ggml.eos_token_id");
  return parts;
}

}  // namespace oscar
