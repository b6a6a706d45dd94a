#include "text/byte_level.h"

#include <array>

#include "text/unicode.h"

namespace oscar {

namespace {

/// Printable bytes stand for themselves; the others take the code points from 256 on, in order.
constexpr std::array<char32_t, 256> make_alphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    alphabet[byte] = printable ? byte : next++;
  }
  return alphabet;
}
constexpr std::array<char32_t, 256> kAlphabet = make_alphabet();

constexpr std::array<int, 512> make_inverse() {
  std::array<int, 512> inverse{};
  for (int& value : inverse) value = -1;
  for (int byte = 0; byte < 256; ++byte) inverse[kAlphabet[static_cast<std::size_t>(byte)]] = byte;
  return inverse;
}
constexpr std::array<int, 512> kInverse = make_inverse();

}  // namespace

std::optional<std::string> bytes_of_spelling(std::string_view token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const char32_t c = next_code_point(token, at);
    if (c >= kInverse.size() || kInverse[c] < 0) return std::nullopt;
    bytes += static_cast<char>(kInverse[c]);
  }
  return bytes;
}

std::string spelling_of_bytes(std::string_view bytes) {
  std::string spelling;
  for (const char byte : bytes) append_utf8(spelling, kAlphabet[static_cast<unsigned char>(byte)]);
  return spelling;
}

}  // namespace oscar
