#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "oscar/core/error.h"
#include "text/byte_level.h"

namespace oscar {

namespace {

constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
/// Above this many symbols, finding the lowest rank by looking at all pairs costs more than a heap.
constexpr std::size_t kShort = 48;

std::uint64_t pair_key(TokenId left, TokenId right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

std::uint64_t mix(std::uint64_t key) {
  key *= 0x9e3779b97f4a7c15ull;
  return key ^ key >> 29;
}

}  // namespace

void Bpe::MergeTable::build(const std::vector<std::pair<std::uint64_t, Merge>>& entries) {
  slots_.assign(std::bit_ceil(entries.size() * 2 + 2), {kEmpty, {}});
  mask_ = slots_.size() - 1;
  for (const auto& entry : entries) {
    std::uint64_t slot = mix(entry.first) & mask_;
    while (slots_[slot].first != kEmpty && slots_[slot].first != entry.first)
      slot = (slot + 1) & mask_;
    slots_[slot] =
        entry;  // a pair that is listed twice keeps its last rank, as Hugging Face's map does
  }
}

const Bpe::Merge* Bpe::MergeTable::find(TokenId left, TokenId right) const {
  const std::uint64_t key = pair_key(left, right);
  for (std::uint64_t slot = mix(key) & mask_;; slot = (slot + 1) & mask_) {
    if (slots_[slot].first == key) return &slots_[slot].second;
    if (slots_[slot].first == kEmpty) return nullptr;
  }
}

Bpe::Bpe(const std::vector<std::pair<std::string, TokenId>>& vocabulary,
         const std::vector<std::pair<std::string, std::string>>& merges, bool ignore_merges,
         std::optional<TokenId> unknown, const std::string& source)
    : unknown_(unknown) {
  std::unordered_map<std::string_view, TokenId> ids;
  ids.reserve(vocabulary.size());
  for (const auto& [spelling, id] : vocabulary) ids.emplace(spelling, id);
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    const auto found = ids.find(spelling_of_bytes({&raw, 1}));
    if (found != ids.end()) bytes_[byte] = found->second;
  }
  std::vector<std::pair<std::uint64_t, Merge>> entries;
  entries.reserve(merges.size());
  for (const auto& [left, right] : merges) {
    const auto a = ids.find(left), b = ids.find(right);
    const std::string joined = left + right;
    const auto whole = ids.find(joined);
    if (a == ids.end() || b == ids.end() || whole == ids.end()) {
      fail_input("{}: merge {} (\"{}\" and \"{}\") names a token that the vocabulary does not have",
                 source, entries.size(), left, right);
    }
    entries.push_back({pair_key(a->second, b->second),
                       {static_cast<std::uint32_t>(entries.size()), whole->second}});
  }
  merges_.build(entries);
  if (ignore_merges) {
    for (const auto& [spelling, id] : vocabulary) {
      if (auto bytes = bytes_of_spelling(spelling)) pieces_.emplace(std::move(*bytes), id);
    }
  }
}

void Bpe::merge_short(std::vector<TokenId>& symbols) const {
  for (;;) {
    const Merge* best = nullptr;
    std::size_t where = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const Merge* merge = merges_.find(symbols[i], symbols[i + 1]);
      if (merge != nullptr && (best == nullptr || merge->rank < best->rank)) {
        best = merge;
        where = i;
      }
    }
    if (best == nullptr) return;
    symbols[where] = best->token;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
}

/// The same result with a heap and a linked list, n log n.
void Bpe::merge_long(std::vector<TokenId>& symbols) const {
  struct Candidate {
    std::uint32_t rank;
    std::size_t at;
    TokenId left, right;
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank
                                : at > other.at;  // std heaps put the largest on top
    }
  };
  const std::size_t count = symbols.size();
  std::vector<std::size_t> next(count), previous(count);
  for (std::size_t i = 0; i < count; ++i) {
    next[i] = i + 1;
    previous[i] = i == 0 ? count : i - 1;
  }
  std::priority_queue<Candidate> queue;
  const auto push = [&](std::size_t at) {
    if (at >= count || next[at] >= count) return;
    const TokenId left = symbols[at], right = symbols[next[at]];
    if (const Merge* merge = merges_.find(left, right)) queue.push({merge->rank, at, left, right});
  };
  for (std::size_t i = 0; i + 1 < count; ++i) push(i);
  constexpr TokenId kGone = -1;
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    // The pair may have been merged away since.
    if (symbols[c.at] != c.left || next[c.at] >= count || symbols[next[c.at]] != c.right) continue;
    const std::size_t gone = next[c.at];
    symbols[c.at] = merges_.find(c.left, c.right)->token;
    symbols[gone] = kGone;
    next[c.at] = next[gone];
    if (next[c.at] < count) previous[next[c.at]] = c.at;
    push(c.at);
    if (previous[c.at] < count) push(previous[c.at]);
  }
  symbols.erase(std::remove(symbols.begin(), symbols.end(), kGone), symbols.end());
}

void Bpe::encode(std::string_view piece, std::vector<TokenId>& out) const {
  if (!pieces_.empty()) {
    const auto whole = pieces_.find(std::string(piece));
    if (whole != pieces_.end()) {
      out.push_back(whole->second);
      return;
    }
  }
  thread_local std::vector<TokenId> symbols;
  symbols.clear();
  for (const char byte : piece) {
    const auto& token = bytes_[static_cast<unsigned char>(byte)];
    if (token) {
      symbols.push_back(*token);
    } else if (unknown_) {
      symbols.push_back(*unknown_);
    }
  }
  if (symbols.size() <= kShort) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
  out.insert(out.end(), symbols.begin(), symbols.end());
}

}  // namespace oscar
