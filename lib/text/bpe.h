#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "oscar/text/tokenizer.h"

namespace oscar {

/// Byte-level byte-pair encoding of one piece at a time: starts from bytes, and merges the pair of
/// lowest rank, leftmost first, until none is left.
class Bpe {
 public:
  /// `vocabulary`: token spellings in the byte-level alphabet; `merges`: pairs of spellings, by
  /// rank. With `ignore_merges`, a piece that is a token is that token, whatever the merges say.
  /// `unknown` stands for bytes that have no token; without it they vanish, as they do for Hugging
  /// Face. Throws InputError naming `source` if a merge's parts or its result are not in the
  /// vocabulary.
  Bpe(const std::vector<std::pair<std::string, TokenId>>& vocabulary,
      const std::vector<std::pair<std::string, std::string>>& merges, bool ignore_merges,
      std::optional<TokenId> unknown, const std::string& source);

  /// Appends the tokens of a piece (raw bytes).
  void encode(std::string_view piece, std::vector<TokenId>& out) const;

 private:
  struct Merge {
    std::uint32_t rank;
    TokenId token;
  };
  /// Open-addressing table from a pair of tokens to their merge; much of encoding is looking up
  /// pairs.
  class MergeTable {
   public:
    void build(const std::vector<std::pair<std::uint64_t, Merge>>& entries);
    const Merge* find(TokenId left, TokenId right) const;

   private:
    std::vector<std::pair<std::uint64_t, Merge>> slots_;
    std::uint64_t mask_ = 0;
  };
  void merge_short(std::vector<TokenId>& symbols) const;
  void merge_long(std::vector<TokenId>& symbols) const;

  std::array<std::optional<TokenId>, 256> bytes_;
  std::unordered_map<std::string, TokenId>
      pieces_;  ///< raw bytes to token; filled only for ignore_merges
  MergeTable merges_;
  std::optional<TokenId> unknown_;
};

}  // namespace oscar
