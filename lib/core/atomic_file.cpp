#include "oscar/core/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "oscar/core/error.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

void flush_to_disk(const fs::path& path, int flags) {
  const int file = ::open(path.c_str(), flags | O_CLOEXEC);
  if (file < 0) fail("{}: cannot be opened for flushing ({})", path.string(), std::strerror(errno));
  const bool flushed = ::fsync(file) == 0;
  const int reason = errno;
  ::close(file);
  if (!flushed) fail_write(path, std::strerror(reason));
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

AtomicFile::AtomicFile(fs::path destination) : destination_(std::move(destination)) {
  const fs::path folder = folder_of(destination_);
  if (!fs::is_directory(folder)) {
    fail_input("{}: cannot be written, the folder {} does not exist", destination_.string(),
               folder.string());
  }
  temporary_ = folder / fmt::format(".{}.{}.partial", destination_.filename().string(), ::getpid());
  const int file = ::open(temporary_.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) {
    fail_input("{}: cannot be written ({})", destination_.string(), std::strerror(errno));
  }
  ::close(file);
}

AtomicFile::~AtomicFile() {
  if (!committed_) {
    std::error_code ignored;
    fs::remove(temporary_, ignored);
  }
}

void AtomicFile::commit() {
  flush_to_disk(temporary_, O_RDONLY);
  std::error_code error;
  fs::rename(temporary_, destination_, error);
  if (error) fail_write(destination_, error.message());
  committed_ = true;
  flush_to_disk(folder_of(destination_), O_RDONLY | O_DIRECTORY);
}

void remove_partial_files(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".") && name.ends_with(".partial")) fs::remove(entry.path());
  }
}

void fail_write(const fs::path& path, const std::string& reason) {
  std::error_code error;
  const fs::space_info space = fs::space(folder_of(path), error);
  constexpr std::uintmax_t kFull = 1u << 20;
  if (!error && space.available < kFull) {
    fail_input("{}: cannot be written, the disk is full; free some space or write elsewhere",
               path.string());
  }
  fail("{}: cannot be written ({})", path.string(), reason);
}

void write_file(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  {
    std::ofstream out(file.temporary_path(), std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    if (!out) fail_write(path, std::strerror(errno));
  }
  file.commit();
}

void write_file(const fs::path& path, std::span<const std::byte> content) {
  write_file(path, {reinterpret_cast<const char*>(content.data()), content.size()});
}

std::string read_file(const fs::path& path, std::size_t max_bytes) {
  std::error_code error;
  if (!fs::exists(path, error)) fail_input("{}: does not exist", path.string());
  if (!fs::is_regular_file(path, error)) fail_input("{}: is not a regular file", path.string());
  const auto size = fs::file_size(path, error);
  if (error) fail_input("{}: cannot be read ({})", path.string(), error.message());
  if (size > max_bytes) {
    fail_input("{}: has {} bytes, more than the {} that such a file may have", path.string(), size,
               max_bytes);
  }
  std::string content(size, '\0');
  std::ifstream in(path, std::ios::binary);
  if (!in.read(content.data(), static_cast<std::streamsize>(size))) {
    fail_input("{}: cannot be read ({})", path.string(), std::strerror(errno));
  }
  return content;
}

void refuse_existing(const fs::path& path, bool force) {
  std::error_code error;
  if (force || !fs::exists(path, error)) return;
  if (fs::is_directory(path, error) && fs::is_empty(path, error)) return;
  fail_input(
      "{}: exists already; nothing was changed. Choose another name, or pass --force to replace it",
      path.string());
}

}  // namespace oscar
