#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "oscar/checkpoint/tensor_view.h"
#include "oscar/core/mapped_file.h"

namespace oscar {

/// A value of a GGUF file's metadata. Integers of any width become std::int64_t (a uint64 above its
/// range is refused), floats double. Strings point into the mapped file.
using GgufValue =
    std::variant<bool, std::int64_t, double, std::string_view, std::vector<bool>,
                 std::vector<std::int64_t>, std::vector<double>, std::vector<std::string_view>>;

/// A GGUF file (version 2 or 3, little endian), memory-mapped: its metadata and its tensors as they
/// are stored. Headers are checked against the file's size before anything is believed.
class GgufFile {
 public:
  /// Throws InputError saying what is wrong and where.
  explicit GgufFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const MappedFile& file() const { return file_; }

  /// The metadata value of that key, or null.
  const GgufValue* find(const std::string& key) const;
  /// The value as a T (one of GgufValue's types). `get` throws InputError if it is absent,
  /// `find_as` returns nothing; both throw InputError if it is of another type.
  template <typename T>
  const T& get(const std::string& key) const;
  template <typename T>
  std::optional<T> find_as(const std::string& key) const;

  /// Tensors by their GGUF names ("blk.0.attn_q.weight"), shapes outermost dimension first.
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }

 private:
  MappedFile file_;
  std::map<std::string, GgufValue> metadata_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace oscar
