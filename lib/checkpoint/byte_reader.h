#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "oscar/core/error.h"

namespace oscar {

/// Reads little-endian numbers and strings from the front of untrusted bytes.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string source)
      : bytes_(bytes), source_(std::move(source)) {}

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::span<const std::byte> take(std::uint64_t size) {
    if (size > remaining()) {
      fail_input(
          "{}: the header ends early: {} bytes wanted at byte {}, {} left; incomplete download?",
          source_, size, at_, remaining());
    }
    at_ += size;
    return bytes_.subspan(at_ - size, size);
  }

  std::size_t position() const { return at_; }
  std::size_t remaining() const { return bytes_.size() - at_; }

 private:
  std::span<const std::byte> bytes_;
  std::string source_;
  std::size_t at_ = 0;
};

}  // namespace oscar
