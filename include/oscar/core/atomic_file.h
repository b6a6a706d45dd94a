#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace oscar {

/// A file that appears whole or not at all. Write to temporary_path() with any library, then
/// commit(): the bytes are flushed to disk and renamed over the destination, and the folder is
/// flushed. Without commit() the temporary file is removed.
class AtomicFile {
 public:
  /// Throws InputError if the destination's folder does not exist or cannot be written.
  explicit AtomicFile(std::filesystem::path destination);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::filesystem::path& temporary_path() const { return temporary_; }
  /// Throws Error if flushing or renaming fails (disk full).
  void commit();

 private:
  std::filesystem::path destination_;
  std::filesystem::path temporary_;
  bool committed_ = false;
};

/// Removes what AtomicFiles of killed processes left in a folder. For folders that one process
/// writes.
void remove_partial_files(const std::filesystem::path& folder);

/// Throws for a write that failed: InputError if the disk is full (the user can free some space),
/// Error otherwise.
[[noreturn]] void fail_write(const std::filesystem::path& path, const std::string& reason);

/// Writes bytes through an AtomicFile.
void write_file(const std::filesystem::path& path, std::string_view content);
void write_file(const std::filesystem::path& path, std::span<const std::byte> content);

/// The whole file as a string. Throws InputError if it cannot be read or exceeds max_bytes.
std::string read_file(const std::filesystem::path& path,
                      std::size_t max_bytes = std::size_t{1} << 32);

/// Throws InputError if the path exists (and is not an empty folder), saying that --force replaces
/// it.
void refuse_existing(const std::filesystem::path& path, bool force);

}  // namespace oscar
