#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

using TokenId = std::int32_t;

/// Byte-level BPE, token for token what Hugging Face tokenizers produces. Immutable; encode may be
/// called from several threads.
class Tokenizer {
 public:
  /// From a Hugging Face folder (its tokenizer.json), a tokenizer.json, or a GGUF file (its
  /// vocabulary). Throws InputError naming the part of the tokenizer that is not supported.
  static Tokenizer load(const std::filesystem::path& path);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Token ids of UTF-8 text. Added tokens in the text are recognised, as Hugging Face does; no BOS
  /// or other token is put around it. Throws InputError with the byte offset if the text is not
  /// valid UTF-8.
  std::vector<TokenId> encode(std::string_view text) const;
  /// The text of these tokens; invalid UTF-8 in the middle of a character becomes U+FFFD.
  std::string decode(const std::vector<TokenId>& tokens, bool skip_special = false) const;

  std::int64_t vocabulary_size() const;
  std::optional<TokenId> find_token(std::string_view token) const;
  /// Text of the BOS / EOS tokens where the model names them; chat templates use them.
  const std::string& bos_token() const;
  const std::string& eos_token() const;
  /// Identifies the tokenizer: "sha256:" and 64 hexadecimal digits over everything that affects
  /// encoding.
  std::string fingerprint() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
