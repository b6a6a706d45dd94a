#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace oscar {

/// A regular expression as Hugging Face's tokenizers write them (Oniguruma's syntax, Unicode
/// classes), on PCRE2. Immutable; search may be called from several threads.
class Regex {
 public:
  /// Throws InputError naming `source` if the pattern does not compile.
  Regex(const std::string& pattern, const std::string& source);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// The first match at or after `from` in valid UTF-8; false if there is none. Throws Error if the
  /// match exceeds PCRE2's limits.
  bool search(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

/// The pattern in PCRE2's syntax: \s and \S mean Unicode's White_Space, as Oniguruma has it
/// (PCRE2's \s also takes U+180E).
std::string translate_pattern(const std::string& pattern, const std::string& source);

}  // namespace oscar
