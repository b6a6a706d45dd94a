#include <algorithm>

#include "oscar/core/json.h"
#include "text/tokenizer_parts.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

/// Throws unless the field is absent, null or holds one of the values that change nothing.
void expect_idle(const Json& object, const char* key, const std::string& source,
                 std::initializer_list<Json> idle = {}) {
  if (!object.contains(key) || object.at(key).is_null()) return;
  if (std::find(idle.begin(), idle.end(), object.at(key)) != idle.end()) return;
  fail_input("{}: \"{}\" = {} is not supported", source, key, object.at(key).dump().substr(0, 80));
}

std::string type_of(const Json& object, const std::string& source) {
  return require<std::string>(object, "type", source);
}

void read_model(const Json& model, TokenizerParts& parts) {
  const std::string source = parts.source + ": model";
  // Old files leave the type out; only BPE has merges.
  const std::string type = find<std::string>(model, "type", source)
                               .value_or(model.contains("merges") ? "BPE" : "unknown");
  if (type != "BPE") {
    fail_input("{}: the type \"{}\" is not supported; oscar reads byte-level BPE", source, type);
  }
  expect_idle(model, "dropout", source, {0.0});
  expect_idle(model, "continuing_subword_prefix", source, {""});
  expect_idle(model, "end_of_word_suffix", source, {""});
  expect_idle(model, "byte_fallback", source, {false});
  expect_idle(model, "fuse_unk", source, {false});
  parts.ignore_merges = find<bool>(model, "ignore_merges", source).value_or(false);
  parts.unknown_token = find<std::string>(model, "unk_token", source);
  const Json& vocabulary = model.contains("vocab") ? model.at("vocab") : Json();
  if (!vocabulary.is_object()) fail_input("{}: \"vocab\" is missing or not an object", source);
  for (const auto& [token, id] : vocabulary.items()) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() > 1 << 30) {
      fail_input("{}: the id of token \"{}\" is {}", source, token, id.dump());
    }
    parts.vocabulary.emplace_back(token, id.get<TokenId>());
  }
  const Json& merges = model.contains("merges") ? model.at("merges") : Json();
  if (!merges.is_array()) fail_input("{}: \"merges\" is missing or not a list", source);
  for (const Json& merge : merges) {
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const auto space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        fail_input("{}: the merge \"{}\" is not two tokens", source, text);
      }
      parts.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      parts.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      fail_input("{}: the merge {} is not two tokens", source, merge.dump().substr(0, 80));
    }
  }
}

void read_normalizer(const Json& normalizer, TokenizerParts& parts) {
  const std::string source = parts.source + ": normalizer";
  if (normalizer.is_null()) return;
  const std::string type = type_of(normalizer, source);
  if (type == "NFC") {
    parts.nfc = true;
  } else if (type == "Sequence") {
    for (const Json& step : require<Json>(normalizer, "normalizers", source))
      read_normalizer(step, parts);
  } else {
    fail_input("{}: the type \"{}\" is not supported; NFC is", source, type);
  }
}

SplitBehavior behavior_of(const std::string& word, const std::string& source) {
  if (word == "Removed") return SplitBehavior::removed;
  if (word == "Isolated") return SplitBehavior::isolated;
  if (word == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (word == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (word == "Contiguous") return SplitBehavior::contiguous;
  fail_input("{}: the behavior \"{}\" is not known", source, word);
}

/// A literal string as a pattern.
std::string quoted(const std::string& literal) {
  std::string pattern;
  for (const char c : literal) {
    const bool plain =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || static_cast<unsigned char>(c) >= 0x80;
    if (!plain) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

/// Returns true if the step was ByteLevel, after which nothing may come: it spells the text anew.
bool read_pre_tokenizer(const Json& step, TokenizerParts& parts, bool ended) {
  const std::string source = parts.source + ": pre_tokenizer";
  const std::string type = type_of(step, source);
  if (ended) fail_input("{}: {} after ByteLevel is not supported", source, type);
  if (type == "Sequence") {
    for (const Json& inner : require<Json>(step, "pretokenizers", source))
      ended = read_pre_tokenizer(inner, parts, ended);
    return ended;
  }
  if (type == "ByteLevel") {
    expect_idle(step, "add_prefix_space", source, {false});
    if (find<bool>(step, "use_regex", source).value_or(true)) {
      parts.pre_tokenizer.add_split(kGpt2Pattern, SplitBehavior::isolated, false, source);
    }
    return true;
  }
  if (type == "Digits") {
    const bool individual = find<bool>(step, "individual_digits", source).value_or(false);
    parts.pre_tokenizer.add_split(R"(\p{N})",
                                  individual ? SplitBehavior::isolated : SplitBehavior::contiguous,
                                  false, source);
    return false;
  }
  if (type == "Split") {
    const Json pattern = require<Json>(step, "pattern", source);
    const auto regex = find<std::string>(pattern, "Regex", source);
    const auto literal = find<std::string>(pattern, "String", source);
    if (!regex && !literal) fail_input("{}: the Split has neither a Regex nor a String", source);
    parts.pre_tokenizer.add_split(
        regex ? *regex : quoted(*literal),
        behavior_of(require<std::string>(step, "behavior", source), source),
        find<bool>(step, "invert", source).value_or(false), source);
    return false;
  }
  fail_input(
      "{}: the type \"{}\" is not supported; Split, Digits, ByteLevel and sequences of them are",
      source, type);
}

void read_added_tokens(const Json& list, TokenizerParts& parts) {
  const std::string source = parts.source + ": added_tokens";
  for (const Json& entry : list) {
    AddedToken token;
    token.id = require<TokenId>(entry, "id", source);
    token.content = require<std::string>(entry, "content", source);
    token.special = find<bool>(entry, "special", source).value_or(false);
    token.normalized = find<bool>(entry, "normalized", source).value_or(!token.special);
    token.single_word = find<bool>(entry, "single_word", source).value_or(false);
    token.left_strip = find<bool>(entry, "lstrip", source).value_or(false);
    token.right_strip = find<bool>(entry, "rstrip", source).value_or(false);
    if (token.id < 0 || token.id > 1 << 30)
      fail_input("{}: the id of \"{}\" is {}", source, token.content, token.id);
    parts.added.push_back(std::move(token));
  }
}

/// A special token's name: a string, or an object with its content.
std::string token_name(const Json& config, const char* key, const std::string& source) {
  if (!config.contains(key) || config.at(key).is_null()) return "";
  const Json& value = config.at(key);
  return value.is_object() ? require<std::string>(value, "content", source)
                           : require<std::string>(config, key, source);
}

}  // namespace

TokenizerParts read_tokenizer_json(const fs::path& path) {
  TokenizerParts parts;
  parts.source = path.string();
  const Json json = read_json(path);
  if (!json.is_object() || !json.contains("model"))
    fail_input("{}: is not a tokenizer.json: no \"model\"", parts.source);
  read_model(json.at("model"), parts);
  read_normalizer(json.value("normalizer", Json()), parts);
  const Json pre_tokenizer = json.value("pre_tokenizer", Json());
  if (pre_tokenizer.is_null() || !read_pre_tokenizer(pre_tokenizer, parts, false)) {
    fail_input("{}: the pre_tokenizer has no ByteLevel step; oscar reads byte-level BPE",
               parts.source);
  }
  read_added_tokens(json.value("added_tokens", Json::array()), parts);
  const fs::path config_path = path.parent_path() / "tokenizer_config.json";
  if (fs::exists(config_path)) {
    const Json config = read_json(config_path);
    parts.bos_token = token_name(config, "bos_token", config_path.string());
    parts.eos_token = token_name(config, "eos_token", config_path.string());
  }
  return parts;
}

}  // namespace oscar
