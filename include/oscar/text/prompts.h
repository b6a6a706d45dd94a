#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "oscar/text/chat_template.h"
#include "oscar/text/tokenizer.h"

namespace oscar {

/// Sequences of token ids, ready for the model. No padding: each sequence has its own length.
struct TokenBatch {
  std::vector<std::vector<TokenId>> sequences;
  std::int64_t sequence_length = 0;  ///< the longest that was allowed

  std::int64_t tokens() const;
  /// "sha256:…"-less 64 hexadecimal digits over lengths and token ids: identifies the data.
  std::string sha256() const;
};

/// Cuts a batch in two: the first holds exactly `tokens` tokens, as load_prompts() would have read
/// them, the second the rest. Throws InputError if there are no more than `tokens`.
std::pair<TokenBatch, TokenBatch> split(const TokenBatch& batch, std::int64_t tokens);

struct PromptOptions {
  std::vector<std::filesystem::path>
      files;                   ///< .txt or .jsonl; empty: the built-in calibration set
  std::int64_t tokens = 8192;  ///< stop after this many (the last sequence is cut); 0: all
  std::int64_t sequence_length = 2048;
  std::uint64_t seed = 0;  ///< order of .jsonl documents; 0: as they come
  bool fill = true;        ///< an InputError when the files hold fewer tokens than asked for
};

/// Reads prompt files (contract, section 6). `.txt`: one document, tokenised as it is, no special
/// tokens, cut into consecutive sequences. `.jsonl`: one document a line ({"text"}, {"messages"},
/// {"prompt","completion"}), each its own sequence, cut at the sequence length. Throws InputError
/// with file and line for an empty file, invalid UTF-8, invalid JSON or an unknown kind of
/// document.
TokenBatch load_prompts(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                        const PromptOptions& options);

}  // namespace oscar
