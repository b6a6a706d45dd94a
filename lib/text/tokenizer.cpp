#include "oscar/text/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>

#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/tokenizer_parts.h"
#include "text/unicode.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

std::string fingerprint_of(const TokenizerParts& parts) {
  Sha256 hash;
  auto vocabulary = parts.vocabulary;
  std::sort(vocabulary.begin(), vocabulary.end());
  for (const auto& [token, id] : vocabulary) hash.update(fmt::format("{} {}\n", id, token));
  for (const auto& [left, right] : parts.merges) hash.update(fmt::format("{} {}\n", left, right));
  for (const AddedToken& t : parts.added) {
    hash.update(fmt::format("added {} {} {} {} {} {} {}\n", t.id, t.content, t.special,
                            t.normalized, t.single_word, t.left_strip, t.right_strip));
  }
  hash.update(fmt::format("ignore_merges {} nfc {} unknown {}\n", parts.ignore_merges, parts.nfc,
                          parts.unknown_token.value_or("")));
  hash.update(parts.pre_tokenizer.description());
  return "sha256:" + hash.hex();
}

std::optional<TokenId> id_of(const TokenizerParts& parts, const std::optional<std::string>& token) {
  if (!token) return std::nullopt;
  for (const auto& [spelling, id] : parts.vocabulary) {
    if (spelling == *token) return id;
  }
  return std::nullopt;
}

std::vector<AddedToken> with_normalized(std::vector<AddedToken> tokens, bool normalized) {
  std::erase_if(tokens, [&](const AddedToken& token) { return token.normalized != normalized; });
  return tokens;
}

/// Added tokens that are found in normalised text are themselves normalised.
std::vector<AddedToken> normalised(std::vector<AddedToken> tokens, bool nfc) {
  for (AddedToken& token : tokens) {
    if (nfc) token.content = to_nfc(token.content);
  }
  return tokens;
}

/// Pieces that were encoded before, with their tokens: most words of a text come again. One a
/// thread.
class PieceCache {
 public:
  static PieceCache& of(std::uint64_t owner) {
    thread_local PieceCache cache;
    if (cache.owner_ != owner || cache.pieces_.size() > kMostPieces) {
      cache.pieces_.clear();
      cache.owner_ = owner;
    }
    return cache;
  }

  template <typename Encode>
  void append(std::string_view piece, std::vector<TokenId>& out, const Encode& encode) {
    if (piece.size() > kLongestPiece) return encode(piece, out);
    key_.assign(piece);
    auto [entry, is_new] = pieces_.try_emplace(key_);
    if (is_new) encode(piece, entry->second);
    out.insert(out.end(), entry->second.begin(), entry->second.end());
  }

 private:
  static constexpr std::size_t kMostPieces = 1u << 16, kLongestPiece = 64;
  std::uint64_t owner_ = 0;
  std::unordered_map<std::string, std::vector<TokenId>> pieces_;
  std::string key_;
};

std::uint64_t next_owner() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerParts p)
      : parts(std::move(p)),
        bpe(parts.vocabulary, parts.merges, parts.ignore_merges, id_of(parts, parts.unknown_token),
            parts.source),
        raw_tokens(with_normalized(parts.added, false)),
        normalised_tokens(normalised(with_normalized(parts.added, true), parts.nfc)),
        fingerprint(fingerprint_of(parts)) {
    for (const auto& [spelling, id] : parts.vocabulary)
      add(id, spelling, bytes_of_spelling(spelling).value_or(spelling));
    for (const AddedToken& token : parts.added) {
      add(token.id, token.content, bytes_of_spelling(token.content).value_or(token.content));
      if (token.special) special[static_cast<std::size_t>(token.id)] = true;
    }
  }

  void add(TokenId id, const std::string& spelling, std::string content) {
    const auto index = static_cast<std::size_t>(id);
    // An id far beyond the number of tokens is a lie that would only fill memory.
    const std::size_t most = 4 * (parts.vocabulary.size() + parts.added.size()) + 65536;
    if (index > most)
      fail_input("{}: the token \"{}\" has the id {}, far beyond the vocabulary", parts.source,
                 spelling, id);
    if (index >= bytes.size()) {
      bytes.resize(index + 1);
      special.resize(index + 1);
    }
    bytes[index] = std::move(content);
    ids.emplace(spelling, id);
  }

  void encode_plain(std::string_view text, std::vector<TokenId>& out) const {
    thread_local std::vector<std::string_view> pieces;
    parts.pre_tokenizer.split(text, pieces);
    PieceCache& cache = PieceCache::of(owner);
    for (const std::string_view piece : pieces) {
      cache.append(piece, out, [&](std::string_view p, std::vector<TokenId>& tokens) {
        bpe.encode(p, tokens);
      });
    }
  }

  void encode_normalised(std::string_view text, std::vector<TokenId>& out) const {
    if (normalised_tokens.empty()) return encode_plain(text, out);
    normalised_tokens.scan(
        text, [&](std::string_view part) { encode_plain(part, out); },
        [&](TokenId id) { out.push_back(id); });
  }

  TokenizerParts parts;
  Bpe bpe;
  AddedTokenFinder raw_tokens, normalised_tokens;
  std::string fingerprint;
  std::vector<std::string> bytes;  ///< by id: what the token decodes to
  std::vector<bool> special;
  std::unordered_map<std::string, TokenId> ids;
  std::uint64_t owner = next_owner();
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const fs::path& path) {
  const bool gguf = path.extension() == ".gguf";
  const fs::path file = fs::is_directory(path) ? path / "tokenizer.json" : path;
  if (!fs::exists(file))
    fail_input("{}: does not exist; the model's tokenizer is needed", file.string());
  return Tokenizer(
      std::make_unique<Impl>(gguf ? read_gguf_vocabulary(file) : read_tokenizer_json(file)));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text) const {
  if (const auto bad = find_invalid_utf8(text))
    fail_input("the text is not valid UTF-8 at byte {}", *bad);
  std::vector<TokenId> out;
  impl_->raw_tokens.scan(
      text,
      [&](std::string_view part) {
        if (impl_->parts.nfc) {
          impl_->encode_normalised(to_nfc(part), out);
        } else {
          impl_->encode_normalised(part, out);
        }
      },
      [&](TokenId id) { out.push_back(id); });
  return out;
}

std::string Tokenizer::decode(const std::vector<TokenId>& tokens, bool skip_special) const {
  std::string bytes;
  for (const TokenId token : tokens) {
    const auto index = static_cast<std::size_t>(token);
    if (token < 0 || index >= impl_->bytes.size())
      fail_input("the token {} is not in the vocabulary", token);
    if (!skip_special || !impl_->special[index]) bytes += impl_->bytes[index];
  }
  return replace_invalid_utf8(bytes);
}

std::int64_t Tokenizer::vocabulary_size() const {
  return static_cast<std::int64_t>(impl_->bytes.size());
}

std::optional<TokenId> Tokenizer::find_token(std::string_view token) const {
  const auto found = impl_->ids.find(std::string(token));
  return found == impl_->ids.end() ? std::nullopt : std::optional(found->second);
}

const std::string& Tokenizer::bos_token() const {
  return impl_->parts.bos_token;
}
const std::string& Tokenizer::eos_token() const {
  return impl_->parts.eos_token;
}
std::string Tokenizer::fingerprint() const {
  return impl_->fingerprint;
}

}  // namespace oscar
