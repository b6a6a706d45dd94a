#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace oscar {

/// GPT-2's byte-level alphabet, which spells every byte as a printable character.

/// The bytes that a token's spelling stands for, or nothing if it holds a character outside the
/// alphabet.
std::optional<std::string> bytes_of_spelling(std::string_view token);

/// The spelling of bytes.
std::string spelling_of_bytes(std::string_view bytes);

}  // namespace oscar
