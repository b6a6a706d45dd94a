#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace oscar {

/// The byte offset at which text stops being valid UTF-8, or nothing.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

/// The code point that begins at `at` of valid UTF-8; `at` moves behind it.
char32_t next_code_point(std::string_view text, std::size_t& at);
/// The code point that ends at `at` (> 0).
char32_t previous_code_point(std::string_view text, std::size_t at);

/// Appends the UTF-8 form of a code point.
void append_utf8(std::string& out, char32_t code_point);

/// White_Space of Unicode, which is what \s means to Hugging Face's regular expressions.
bool is_white_space(char32_t code_point);
/// A letter, mark, number or connector: \w.
bool is_word(char32_t code_point);

/// Normalization form C. Throws Error if the library fails.
std::string to_nfc(std::string_view text);

/// Valid UTF-8 whatever comes in: each maximal ill-formed part becomes U+FFFD.
std::string replace_invalid_utf8(std::string_view bytes);

}  // namespace oscar
