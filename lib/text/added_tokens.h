#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/text/tokenizer.h"

namespace oscar {

/// A token that is recognised in the text before anything else happens to it.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;      ///< left out by decode(skip_special)
  bool normalized = false;   ///< recognised in the normalised text instead of the raw one
  bool single_word = false;  ///< only where no word character touches it
  bool left_strip = false;   ///< swallows white space before it
  bool right_strip = false;  ///< swallows white space behind it
};

/// Finds added tokens in text, leftmost and longest first.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  /// Calls `text_part` for stretches without added tokens and `token` for each one found, in order.
  void scan(std::string_view text, const std::function<void(std::string_view)>& text_part,
            const std::function<void(TokenId)>& token) const;
  bool empty() const { return tokens_.empty(); }

 private:
  const AddedToken* match_at(std::string_view text, std::size_t at) const;
  std::vector<AddedToken> tokens_;  ///< longest first
  std::string first_bytes_;         ///< bytes that a token can begin with
};

}  // namespace oscar
