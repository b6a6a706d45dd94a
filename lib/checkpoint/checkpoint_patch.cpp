#include "oscar/checkpoint/checkpoint_patch.h"

#include <algorithm>
#include <bit>
#include <map>

#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"
#include "oscar/core/atomic_file.h"
#include "oscar/core/float16.h"
#include "oscar/core/hash.h"
#include "oscar/core/json.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

class SafetensorsPatch : public CheckpointPatch {
 public:
  SafetensorsPatch(const fs::path& path, const Checkpoint& checkpoint)
      : file_(path), sha256_(sha256_file(path)) {
    std::map<std::string, std::string> skipped;
    tensors_ = read_safetensors(file_, skipped);
    if (!skipped.empty()) {
      fail_input("{}: the tensor {} is stored as {}; F32, F16 and BF16 are supported",
                 path.string(), skipped.begin()->first, skipped.begin()->second);
    }
    if (tensors_.empty()) fail_input("{}: holds no tensors; nothing to patch", path.string());
    std::map<std::string, std::vector<std::int64_t>> known;
    for (int layer = 0; layer < checkpoint.config().layers; ++layer) {
      for (Expected& tensor : layer_tensors(checkpoint.config(), layer)) {
        known.emplace(std::move(tensor.name), std::move(tensor.shape));
      }
    }
    for (const auto& [name, tensor] : tensors_) {
      const auto found = known.find(name);
      if (found == known.end()) {
        fail_input(
            "{}: the tensor {} is not one of the decoder layers of {}; is the patch for "
            "another model?",
            path.string(), name, checkpoint.path().string());
      }
      if (found->second != tensor.shape) {
        fail_input("{}: the tensor {} has the shape [{}], but the model's is [{}]", path.string(),
                   name, fmt::join(tensor.shape, ", "), fmt::join(found->second, ", "));
      }
    }
  }

  const fs::path& path() const override { return file_.path(); }
  const std::string& sha256() const override { return sha256_; }
  const TensorView* find(const std::string& name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
  }

 private:
  MappedFile file_;
  std::string sha256_;
  std::map<std::string, TensorView> tensors_;
};

/// The values' bytes, little-endian, in the smallest type that keeps them.
std::string bytes_of(const std::vector<float>& values, const char*& type) {
  std::string bytes;
  const auto put = [&](std::uint32_t bits, int count) {
    for (int i = 0; i < count; ++i) bytes += static_cast<char>(bits >> (8 * i) & 0xff);
  };
  const bool short_enough = std::all_of(values.begin(), values.end(), [](float value) {
    return bfloat16_to_float(float_to_bfloat16(value)) == value;
  });
  type = short_enough ? "BF16" : "F32";
  for (const float value : values) {
    if (short_enough) {
      put(float_to_bfloat16(value), 2);
    } else {
      put(std::bit_cast<std::uint32_t>(value), 4);
    }
  }
  return bytes;
}

}  // namespace

std::shared_ptr<const CheckpointPatch> CheckpointPatch::open(const fs::path& path,
                                                             const Checkpoint& checkpoint) {
  return std::make_shared<SafetensorsPatch>(path, checkpoint);
}

void write_patch(const fs::path& path, std::span<const PatchTensor> tensors) {
  OrderedJson header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const PatchTensor& tensor : tensors) {
    const char* type = nullptr;
    const std::size_t begin = data.size();
    data += bytes_of(tensor.values, type);
    header[tensor.name] = {
        {"dtype", type}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(text.size() >> (8 * i) & 0xff);
  write_file(path, file + text + data);
}

}  // namespace oscar
