#include "zoo/torch_file.h"

#include <cmath>
#include <cstring>

#include "oscar/core/error.h"
#include "oscar/core/float16.h"
#include "oscar/core/hash.h"

namespace oscar {

namespace {

/// The archive's top folder: whatever comes before /data.pkl.
std::string find_root(const ZipReader& zip, const std::string& source) {
  for (const auto& [name, data] : zip.entries()) {
    if (name.ends_with("/data.pkl") && name.find('/') == name.size() - 9)
      return name.substr(0, name.size() - 9);
  }
  fail_input("{}: holds no <name>/data.pkl, so torch.save did not write it", source);
}

std::span<const std::byte> entry(const ZipReader& zip, const std::string& name,
                                 const std::string& source) {
  const auto found = zip.entries().find(name);
  if (found == zip.entries().end()) fail_input("{}: the entry {} is missing", source, name);
  return found->second;
}

std::size_t element_bytes(const std::string& storage) {
  if (storage == "DoubleStorage") return 8;
  if (storage == "FloatStorage") return 4;
  return 2;  // HalfStorage, BFloat16Storage: the reader lets no others through
}

float element(const std::byte* data, const std::string& storage) {
  if (storage == "DoubleStorage") {
    double value;
    std::memcpy(&value, data, sizeof value);
    return static_cast<float>(value);
  }
  if (storage == "FloatStorage") {
    float value;
    std::memcpy(&value, data, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, data, sizeof bits);
  return storage == "HalfStorage" ? half_to_float(bits) : bfloat16_to_float(bits);
}

}  // namespace

TorchFile::TorchFile(const std::filesystem::path& path)
    : source_(path.string()),
      file_(path),
      zip_(file_.bytes(), source_),
      root_name_(find_root(zip_, source_)),
      pickle_(entry(zip_, root_name_ + "/data.pkl", source_), source_) {
  const auto order = zip_.entries().find(root_name_ + "/byteorder");
  if (order != zip_.entries().end() &&
      std::string_view(reinterpret_cast<const char*>(order->second.data()), order->second.size()) !=
          "little") {
    fail_input("{}: its tensors are big-endian; save it again on a little-endian machine", source_);
  }
}

std::vector<float> TorchFile::read(const pickle::Tensor& tensor, const std::string& what) const {
  const std::string name = root_name_ + "/data/" + tensor.storage.key;
  const auto data = entry(zip_, name, source_);
  const std::size_t bytes = element_bytes(tensor.storage.type);
  std::int64_t elements = 1, last = tensor.offset;
  bool too_large = false;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    too_large = too_large || __builtin_mul_overflow(elements, tensor.shape[i], &elements);
    std::int64_t reach = 0;
    too_large = too_large ||
                __builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &reach) ||
                __builtin_add_overflow(last, reach, &last);
  }
  // A view of stride 0 may have more elements than its storage, but no rotation has this many.
  constexpr std::int64_t kMostElements = std::int64_t{1} << 30;
  if (too_large || elements > kMostElements ||
      (elements > 0 && static_cast<std::uint64_t>(last) >= data.size() / bytes)) {
    fail_input("{}: {} reaches beyond its storage {} ({} bytes)", source_, what, name, data.size());
  }
  std::vector<float> result(static_cast<std::size_t>(elements));
  std::vector<std::int64_t> index(tensor.shape.size(), 0);
  std::int64_t at = tensor.offset;
  for (float& value : result) {
    value = element(data.data() + static_cast<std::size_t>(at) * bytes, tensor.storage.type);
    if (!std::isfinite(value)) fail_input("{}: {} holds a value that is not finite", source_, what);
    for (std::size_t axis = index.size(); axis-- > 0;) {
      at += tensor.strides[axis];
      if (++index[axis] < tensor.shape[axis]) break;
      at -= tensor.strides[axis] * tensor.shape[axis];
      index[axis] = 0;
    }
  }
  return result;
}

void TorchFileWriter::tensor(const float* elements, const std::vector<std::int64_t>& shape) {
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  pickle_.tensor(static_cast<int>(storages_.size()), shape);
  storages_.emplace_back(reinterpret_cast<const char*>(elements), count * sizeof(float));
}

std::string TorchFileWriter::finish(const std::string& root_name) {
  const std::string program = pickle_.finish();
  Sha256 hash;
  hash.update(program);
  for (const auto& storage : storages_) hash.update(storage);
  // torch keeps 40 decimal digits here; ours come from the content, so that equal files are equal.
  std::string id;
  for (const char digit : hash.hex().substr(0, 40)) id += static_cast<char>('0' + (digit % 10));

  ZipWriter zip;
  zip.add(root_name + "/data.pkl", program);
  zip.add(root_name + "/.format_version", "1");
  zip.add(root_name + "/.storage_alignment", "64");
  zip.add(root_name + "/byteorder", "little");
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    zip.add(root_name + "/data/" + std::to_string(i), storages_[i]);
  }
  zip.add(root_name + "/version", "3\n");
  zip.add(root_name + "/.data/serialization_id", id);
  return zip.finish();
}

}  // namespace oscar
