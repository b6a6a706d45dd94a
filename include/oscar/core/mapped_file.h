#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace oscar {

/// A file mapped read-only into memory. Movable; pages are read when touched.
class MappedFile {
 public:
  /// Throws InputError if the path is missing, not a regular file, unreadable or empty.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  /// Tells the kernel that these bytes are wanted soon (upload of the next layer) ...
  void will_need(std::span<const std::byte> part) const;
  /// ... or not again, so that a checkpoint larger than memory does not fill it. Never an error.
  void done_with(std::span<const std::byte> part) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace oscar
