#include "zoo/zip_archive.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "oscar/core/error.h"

namespace oscar {

namespace {

constexpr std::uint32_t kLocalHeader = 0x04034b50, kCentralHeader = 0x02014b50, kEnd = 0x06054b50;
constexpr std::uint32_t kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50;
constexpr std::uint16_t kUtf8Names = 0x0800;
constexpr std::size_t kAlignment = 64;

/// Little-endian fields at checked offsets.
class Fields {
 public:
  Fields(std::span<const std::byte> bytes, const std::string& source)
      : bytes_(bytes), source_(source) {}

  template <typename T>
  T at(std::size_t offset) const {
    T value;
    std::memcpy(&value, part(offset, sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::span<const std::byte> part(std::size_t offset, std::size_t size) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset) {
      fail_input("{}: the zip archive points beyond its end ({} bytes); incomplete download?",
                 source_, bytes_.size());
    }
    return bytes_.subspan(offset, size);
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& source_;
};

struct Directory {
  std::uint64_t entries, offset;
};

/// Finds the end-of-central-directory record, searching backwards over a comment.
Directory find_directory(const Fields& fields, std::size_t size, const std::string& source) {
  constexpr std::size_t kEndSize = 22, kLongestComment = 65535;
  for (std::size_t back = kEndSize; back <= std::min(size, kEndSize + kLongestComment); ++back) {
    const std::size_t end = size - back;
    if (fields.at<std::uint32_t>(end) != kEnd) continue;
    const Directory directory = {fields.at<std::uint16_t>(end + 10),
                                 fields.at<std::uint32_t>(end + 16)};
    const bool has_locator = end >= 20 && fields.at<std::uint32_t>(end - 20) == kEnd64Locator;
    if (!has_locator) return directory;
    const auto end64 = fields.at<std::uint64_t>(end - 20 + 8);
    if (fields.at<std::uint32_t>(end64) != kEnd64) break;
    return {fields.at<std::uint64_t>(end64 + 32), fields.at<std::uint64_t>(end64 + 48)};
  }
  fail_input(
      "{}: is not a zip archive, as torch.save writes them; incomplete download, or a legacy "
      "format?",
      source);
}

/// A 64-bit size or offset from the zip64 extra field, for a 32-bit field that holds 0xffffffff.
class Zip64Extra {
 public:
  Zip64Extra(std::span<const std::byte> extra, const std::string& source) : fields_(extra, source) {
    for (std::size_t at = 0; at + 4 <= extra.size();) {
      const auto size = fields_.at<std::uint16_t>(at + 2);
      if (fields_.at<std::uint16_t>(at) == 1) next_ = at + 4;
      at += 4 + std::size_t{size};
    }
  }
  std::uint64_t resolve(std::uint32_t value) {
    if (value != 0xffffffff || next_ == 0) return value;
    const auto wide = fields_.at<std::uint64_t>(next_);
    next_ += 8;
    return wide;
  }

 private:
  Fields fields_;
  std::size_t next_ = 0;  ///< 0: there is no such field
};

std::uint32_t crc_of(const void* data, std::size_t size) {
  return static_cast<std::uint32_t>(crc32_z(0, static_cast<const Bytef*>(data), size));
}

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace

ZipReader::ZipReader(std::span<const std::byte> archive, const std::string& source) {
  const Fields fields(archive, source);
  const Directory directory = find_directory(fields, archive.size(), source);
  std::uint64_t at = directory.offset;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    if (fields.at<std::uint32_t>(at) != kCentralHeader) {
      fail_input("{}: entry {} of the zip directory is damaged", source, i);
    }
    const auto name_size = fields.at<std::uint16_t>(at + 28),
               extra_size = fields.at<std::uint16_t>(at + 30);
    const auto name_bytes = fields.part(at + 46, name_size);
    const std::string name(reinterpret_cast<const char*>(name_bytes.data()), name_bytes.size());
    Zip64Extra extra(fields.part(at + 46 + name_size, extra_size), source);
    const auto size = extra.resolve(fields.at<std::uint32_t>(at + 24));
    const auto stored = extra.resolve(fields.at<std::uint32_t>(at + 20));
    const auto header = extra.resolve(fields.at<std::uint32_t>(at + 42));
    if (fields.at<std::uint16_t>(at + 10) != 0 || stored != size) {
      fail_input(
          "{}: the entry {} is compressed; torch.save stores entries uncompressed, and so must "
          "this file",
          source, name);
    }
    if (fields.at<std::uint32_t>(header) != kLocalHeader) {
      fail_input("{}: the entry {} is damaged", source, name);
    }
    const std::uint64_t data_at =
        header + 30 + fields.at<std::uint16_t>(header + 26) + fields.at<std::uint16_t>(header + 28);
    const auto data = fields.part(data_at, size);
    if (crc_of(data.data(), data.size()) != fields.at<std::uint32_t>(at + 16)) {
      fail_input("{}: the entry {} does not match its checksum; the file is damaged", source, name);
    }
    if (!entries_.emplace(name, data).second)
      fail_input("{}: holds the entry {} twice", source, name);
    at += 46 + std::uint64_t{name_size} + extra_size + fields.at<std::uint16_t>(at + 32);
  }
}

void ZipWriter::add(const std::string& name, std::string_view data) {
  if (archive_.size() + data.size() > std::numeric_limits<std::uint32_t>::max() - (1u << 20)) {
    fail("a rotation file above 4 GiB cannot be written");
  }
  const Entry entry = {name, crc_of(data.data(), data.size()),
                       static_cast<std::uint32_t>(data.size()),
                       static_cast<std::uint32_t>(archive_.size())};
  // An extra field pads the header so that the data are aligned: 4 bytes of its own and the
  // padding.
  const std::size_t bare = archive_.size() + 30 + name.size() + 4;
  const auto padding = static_cast<std::uint16_t>((kAlignment - bare % kAlignment) % kAlignment);
  append(archive_, kLocalHeader);
  append<std::uint16_t>(archive_, 20);  // version needed
  append(archive_, kUtf8Names);
  append<std::uint16_t>(archive_, 0);  // stored
  append<std::uint32_t>(archive_, 0);  // no time
  append(archive_, entry.crc);
  append(archive_, entry.size);
  append(archive_, entry.size);
  append(archive_, static_cast<std::uint16_t>(name.size()));
  append(archive_, static_cast<std::uint16_t>(4 + padding));
  archive_ += name;
  append<std::uint16_t>(archive_, 0x4246);  // "FB", as torch.save names its padding
  append(archive_, padding);
  archive_.append(padding, 'Z');
  archive_ += data;
  entries_.push_back(entry);
}

std::string ZipWriter::finish() {
  const auto directory = static_cast<std::uint32_t>(archive_.size());
  for (const Entry& entry : entries_) {
    append(archive_, kCentralHeader);
    append<std::uint16_t>(archive_, 0);   // made by
    append<std::uint16_t>(archive_, 20);  // version needed
    append(archive_, kUtf8Names);
    append<std::uint16_t>(archive_, 0);  // stored
    append<std::uint32_t>(archive_, 0);  // no time
    append(archive_, entry.crc);
    append(archive_, entry.size);
    append(archive_, entry.size);
    append(archive_, static_cast<std::uint16_t>(entry.name.size()));
    append<std::uint16_t>(archive_, 0);  // no extra field
    append<std::uint16_t>(archive_, 0);  // no comment
    append<std::uint16_t>(archive_, 0);  // disk
    append<std::uint16_t>(archive_, 0);  // internal attributes
    append<std::uint32_t>(archive_, 0);  // external attributes
    append(archive_, entry.header_offset);
    archive_ += entry.name;
  }
  const auto size = static_cast<std::uint32_t>(archive_.size()) - directory;
  append(archive_, kEnd);
  append<std::uint32_t>(archive_, 0);  // disks
  append(archive_, static_cast<std::uint16_t>(entries_.size()));
  append(archive_, static_cast<std::uint16_t>(entries_.size()));
  append(archive_, size);
  append(archive_, directory);
  append<std::uint16_t>(archive_, 0);  // no comment
  return std::move(archive_);
}

}  // namespace oscar
