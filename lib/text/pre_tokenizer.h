#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace oscar {

/// What becomes of the parts that a Split's pattern matches.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// Cuts normalised text into the pieces that BPE never merges across.
class PreTokenizer {
 public:
  /// Cuts every piece by a pattern. With `invert`, what the pattern does not match counts as
  /// matched.
  void add_split(const std::string& pattern, SplitBehavior behavior, bool invert,
                 const std::string& source);

  /// The pieces, in order, as views of `text`.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

  /// Everything that decides where cuts fall, for fingerprints.
  std::string description() const;

 private:
  struct Step {
    std::string pattern;
    Regex regex;
    SplitBehavior behavior;
    bool invert;
  };
  static void apply(const Step& step, std::string_view piece, std::vector<std::string_view>& out);
  std::vector<Step> steps_;
};

/// The pattern of GPT-2, which ByteLevel pre-tokenizers use.
inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace oscar
