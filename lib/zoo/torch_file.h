#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "oscar/core/mapped_file.h"
#include "oscar/linalg/matrix.h"
#include "zoo/pickle_reader.h"
#include "zoo/pickle_writer.h"
#include "zoo/zip_archive.h"

namespace oscar {

/// A file written by torch.save, opened for reading.
class TorchFile {
 public:
  /// Throws InputError if it is not one, is damaged, or holds more than data and tensors.
  explicit TorchFile(const std::filesystem::path& path);

  const pickle::Value& root() const { return pickle_.root(); }
  const std::string& source() const { return source_; }

  /// A tensor's elements in row-major order as float32, whatever its type and strides; finite, or
  /// an InputError. `what` names it in messages.
  std::vector<float> read(const pickle::Tensor& tensor, const std::string& what) const;

 private:
  std::string source_;
  MappedFile file_;
  ZipReader zip_;
  std::string root_name_;
  pickle::Reader pickle_;
};

/// Builds a file that torch.load(weights_only=True) reads: instructions go to pickle(), tensors are
/// added in the order of their keys.
class TorchFileWriter {
 public:
  pickle::Writer& pickle() { return pickle_; }
  /// Emits a tensor and keeps its elements for the file. `size` elements of shape `shape`.
  void tensor(const float* elements, const std::vector<std::int64_t>& shape);
  /// The whole file; `root_name` is the archive's top folder.
  std::string finish(const std::string& root_name);

 private:
  pickle::Writer pickle_;
  std::vector<std::string> storages_;
};

}  // namespace oscar
