#include "oscar/core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "oscar/core/error.h"

namespace oscar {

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail_input("{}: cannot be opened ({})", path.string(), std::strerror(errno));
  struct stat status {};
  const bool readable = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  if (!readable || status.st_size == 0) {
    ::close(file);
    fail_input("{}: {}", path.string(), readable ? "the file is empty" : "not a regular file");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
  const int reason = errno;
  ::close(file);
  if (address == MAP_FAILED) {
    fail("{}: cannot be mapped into memory ({})", path.string(), std::strerror(reason));
  }
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

namespace {

void advise(std::span<const std::byte> part, int advice) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(part.data()) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(part.data() + part.size());
  ::madvise(reinterpret_cast<void*>(begin), end - begin,
            advice);  // advice only: failure changes nothing
}

}  // namespace

void MappedFile::will_need(std::span<const std::byte> part) const {
  advise(part, MADV_WILLNEED);
}
void MappedFile::done_with(std::span<const std::byte> part) const {
  advise(part, MADV_DONTNEED);
}

}  // namespace oscar
