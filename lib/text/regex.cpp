#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include "oscar/core/error.h"

namespace oscar {

namespace {

constexpr std::string_view kWhiteSpace =
    R"(\t\n\x0b\f\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

std::string error_text(int code) {
  char buffer[256];
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(buffer), sizeof buffer);
  return buffer;
}

/// What a thread needs to match: a match block and a stack for the compiled code, which long runs
/// need.
struct Scratch {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 * 1024, 64 * 1024 * 1024, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  Scratch() { pcre2_jit_stack_assign(context, nullptr, stack); }
  ~Scratch() {
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
    pcre2_match_data_free(data);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

}  // namespace

std::string translate_pattern(const std::string& pattern, const std::string& source) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's') {
        out += in_class ? std::string(kWhiteSpace) : fmt::format("[{}]", kWhiteSpace);
      } else if (next == 'S') {
        if (in_class)
          fail_input("{}: \\S inside a character class is not supported: {}", source, pattern);
        out += fmt::format("[^{}]", kWhiteSpace);
      } else {
        out += c;
        out += next;
      }
      continue;
    }
    if (c == '[') {
      if (in_class)
        fail_input("{}: a class inside a character class is not supported: {}", source, pattern);
      in_class = true;
    } else if (c == ']') {
      in_class = false;
    } else if (in_class && c == '&' && pattern.compare(i, 2, "&&") == 0) {
      fail_input("{}: an intersection of character classes is not supported: {}", source, pattern);
    }
    out += c;
  }
  return out;
}

struct Regex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(const std::string& pattern, const std::string& source)
    : code_(std::make_unique<Code>()) {
  const std::string translated = translate_pattern(pattern, source);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (code_->code == nullptr) {
    fail_input("{}: the regular expression {} does not compile ({} at {})", source, pattern,
               error_text(error), offset);
  }
  pcre2_jit_compile(
      code_->code, PCRE2_JIT_COMPLETE);  // where it fails, pcre2_match interprets: slower, the same
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

bool Regex::search(std::string_view text, std::size_t from, std::size_t& begin,
                   std::size_t& end) const {
  thread_local Scratch scratch;
  const int found = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                from, PCRE2_NO_UTF_CHECK, scratch.data, scratch.context);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) fail("pcre2_match failed: {}", error_text(found));
  const PCRE2_SIZE* where = pcre2_get_ovector_pointer(scratch.data);
  begin = where[0];
  end = where[1];
  return true;
}

}  // namespace oscar
