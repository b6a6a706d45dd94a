#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

/// The entries of a zip archive that are stored uncompressed, as torch.save writes them. The
/// archive's bytes must outlive the reader.
class ZipReader {
 public:
  /// Reads the central directory (zip64 included) and checks every entry's place, size and CRC-32.
  /// Throws InputError naming `source` if something does not fit.
  ZipReader(std::span<const std::byte> archive, const std::string& source);

  const std::map<std::string, std::span<const std::byte>>& entries() const { return entries_; }

 private:
  std::map<std::string, std::span<const std::byte>> entries_;
};

/// Builds such an archive in memory. Data begin at multiples of 64 bytes; no times are recorded, so
/// the same entries give the same bytes.
class ZipWriter {
 public:
  void add(const std::string& name, std::string_view data);
  /// Appends the central directory and hands the archive over.
  std::string finish();

 private:
  struct Entry {
    std::string name;
    std::uint32_t crc;
    std::uint32_t size;
    std::uint32_t header_offset;
  };
  std::string archive_;
  std::vector<Entry> entries_;
};

}  // namespace oscar
