#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "oscar/text/tokenizer.h"
#include "text/added_tokens.h"
#include "text/pre_tokenizer.h"

namespace oscar {

/// A tokenizer as a file describes it, before it is put together.
struct TokenizerParts {
  std::string source;  ///< names the file in messages
  std::vector<std::pair<std::string, TokenId>>
      vocabulary;  ///< spellings in the byte-level alphabet
  std::vector<std::pair<std::string, std::string>> merges;
  bool ignore_merges = false;
  std::optional<std::string> unknown_token;
  bool nfc = false;
  PreTokenizer pre_tokenizer;
  std::vector<AddedToken> added;
  std::string bos_token, eos_token;
};

/// From tokenizer.json, and the tokenizer_config.json beside it for the names of BOS and EOS.
TokenizerParts read_tokenizer_json(const std::filesystem::path& path);
/// From the vocabulary inside a GGUF file.
TokenizerParts read_gguf_vocabulary(const std::filesystem::path& path);

}  // namespace oscar
