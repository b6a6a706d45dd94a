#include "oscar/zoo/rotation_file.h"

#include <charconv>

#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "zoo/torch_file.h"

namespace oscar {

namespace {

using pickle::Dict;
using pickle::Tensor;
using pickle::Value;

/// Interprets the objects of a rotation file.
class Schema {
 public:
  Schema(const TorchFile& file, Side side) : file_(file) { set_.side = side; }

  RotationSet read() {
    if (const auto* stacked = file_.root().as<Tensor>()) {
      read_stacked(*stacked);
    } else if (const auto* dict = file_.root().as<Dict>()) {
      if (const auto* layers = dict->find("layers")) {
        read_header(*dict);
        read_layers(*layers);
      } else {
        read_layers(file_.root());  // flat {id: tensor}
      }
    } else {
      refuse("holds neither a dictionary nor a tensor [layers, D, D]");
    }
    if (set_.layers.empty()) refuse("holds no layers");
    check_granularity();
    return std::move(set_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail_input("{}: {}", file_.source(), fmt::format(format, std::forward<Args>(args)...));
  }

  std::string text(const Dict& dict, const char* key) const {
    const auto* value = dict.find(key);
    const auto* result = value != nullptr ? value->as<std::string>() : nullptr;
    return result != nullptr ? *result : "";
  }

  std::int64_t integer(const Dict& dict, const char* key) const {
    const auto* value = dict.find(key);
    const auto* result = value != nullptr ? value->as<std::int64_t>() : nullptr;
    return result != nullptr ? *result : 0;
  }

  void read_header(const Dict& dict) {
    const auto* version = dict.find("format_version");
    const auto* number = version != nullptr ? version->as<std::int64_t>() : nullptr;
    if (number != nullptr && (*number < 1 || *number > 3)) {
      refuse("format_version {} is not supported; this program reads versions 1 to 3", *number);
    }
    set_.objective = text(dict, "objective");
    const auto* transform = dict.find("transform");
    if (const auto* names = transform != nullptr ? transform->as<Dict>() : nullptr) {
      if (const std::string name = text(*names, side_word()); !name.empty()) set_.objective = name;
    }
    const auto* block = dict.find("calibration");
    if (const auto* calibration = block != nullptr ? block->as<Dict>() : nullptr) {
      Calibration c;
      c.generation_id = text(*calibration, "generation_id");
      c.model_path = text(*calibration, "model_path");
      c.model_revision = text(*calibration, "model_revision");
      c.model_fingerprint = text(*calibration, "model_fingerprint");
      c.prompt_sha256 = text(*calibration, "prompt_sha256");
      c.tokens = integer(*calibration, "tokens");
      c.global_q_heads = integer(*calibration, "global_q_heads");
      c.global_kv_heads = integer(*calibration, "global_kv_heads");
      const auto* post_rope = calibration->find("post_rope");
      const auto* flag = post_rope != nullptr ? post_rope->as<bool>() : nullptr;
      c.post_rope = flag == nullptr || *flag;
      c.accumulator_dtype = text(*calibration, "accumulator_dtype");
      set_.calibration = c;
    }
  }

  const char* side_word() const { return set_.side == Side::key ? "key" : "value"; }
  const char* read_word() const { return set_.side == Side::key ? "q_rotation" : "o_rotation"; }

  /// Layer ids are integers or their decimal spelling.
  int layer_id(const Value& key) const {
    std::int64_t id = -1;
    if (const auto* number = key.as<std::int64_t>()) {
      id = *number;
    } else if (const auto* word = key.as<std::string>()) {
      const auto [end, error] = std::from_chars(word->data(), word->data() + word->size(), id);
      if (error != std::errc() || end != word->data() + word->size()) id = -1;
    }
    if (id < 0 || id > 100000) refuse("a layer's key is not a layer number");
    return static_cast<int>(id);
  }

  void read_layers(const Value& value) {
    const auto* layers = value.as<Dict>();
    if (layers == nullptr) refuse("\"layers\" is not a dictionary");
    for (const auto& [key, content] : layers->items) {
      const int id = layer_id(*key);
      LayerRotation layer;
      if (const auto* bare = content->as<Tensor>()) {
        layer.rotation = matrices(*bare, id);
      } else if (const auto* fields = content->as<Dict>()) {
        read_layer(*fields, id, layer);
      } else {
        refuse("layer {} is neither a tensor nor a dictionary", id);
      }
      if (!set_.layers.emplace(id, std::move(layer)).second) refuse("layer {} is there twice", id);
    }
  }

  void read_layer(const Dict& fields, int id, LayerRotation& layer) {
    const auto find = [&fields](const char* name) {
      const auto* value = fields.find(name);
      return value != nullptr ? value->as<Tensor>() : nullptr;
    };
    const auto* rotation = find("rotation");
    if (rotation == nullptr) refuse("layer {} has no tensor \"rotation\"", id);
    layer.rotation = matrices(*rotation, id);
    const auto size = layer.rotation[0].rows();
    if (const auto* eigenvalues = find("eigenvalues")) {
      layer.eigenvalues = vectors(*eigenvalues, id, "eigenvalues", size);
      if (layer.eigenvalues.size() != layer.rotation.size()) {
        refuse("layer {}: {} rows of eigenvalues for {} matrices", id, layer.eigenvalues.size(),
               layer.rotation.size());
      }
    }
    if (const auto* read = find(read_word())) {
      layer.read = matrices(*read, id);
      if (layer.read.size() != layer.rotation.size() || layer.read[0].rows() != size) {
        refuse("layer {}: \"{}\" has another shape than \"rotation\"", id, read_word());
      }
    }
    if (const auto* mean = set_.side == Side::key ? find("k_mean") : nullptr) {
      layer.mean = vectors(*mean, id, "k_mean", size);
    }
  }

  void read_stacked(const Tensor& stacked) {
    if (stacked.shape.size() != 3 || stacked.shape[1] != stacked.shape[2]) {
      refuse("a bare tensor must have the shape [layers, D, D]");
    }
    const auto values = file_.read(stacked, "the stacked tensor");
    const auto size = stacked.shape[1];
    for (std::int64_t id = 0; id < stacked.shape[0]; ++id) {
      set_.layers[static_cast<int>(id)].rotation.push_back(
          Eigen::Map<const MatrixF>(values.data() + id * size * size, size, size));
    }
  }

  std::vector<MatrixF> matrices(const Tensor& tensor, int id) {
    const auto& shape = tensor.shape;
    const std::size_t axes = shape.size();
    if (axes < 2 || axes > 3 || shape[axes - 1] != shape[axes - 2] || shape[axes - 1] < 1 ||
        shape[0] < 1) {
      refuse("layer {}: the rotation has the shape [{}], expected [D, D] or [kv_heads, D, D]", id,
             fmt::join(shape, ", "));
    }
    const auto values = file_.read(tensor, fmt::format("the rotation of layer {}", id));
    const auto size = shape[axes - 1], count = axes == 3 ? shape[0] : 1;
    std::vector<MatrixF> result;
    for (std::int64_t i = 0; i < count; ++i) {
      result.push_back(Eigen::Map<const MatrixF>(values.data() + i * size * size, size, size));
    }
    if (axes == 3) set_.granularity = Granularity::head;
    return result;
  }

  /// [D] or [n, D].
  std::vector<VectorF> vectors(const Tensor& tensor, int id, const char* name,
                               Eigen::Index size) const {
    const auto& shape = tensor.shape;
    if (shape.empty() || shape.size() > 2 || shape.back() != size || shape[0] < 1) {
      refuse("layer {}: \"{}\" has the shape [{}], expected [{}] or [kv_heads, {}]", id, name,
             fmt::join(shape, ", "), size, size);
    }
    const auto values = file_.read(tensor, fmt::format("{} of layer {}", name, id));
    std::vector<VectorF> result;
    for (Eigen::Index i = 0; i < static_cast<Eigen::Index>(values.size()) / size; ++i) {
      result.push_back(Eigen::Map<const VectorF>(values.data() + i * size, size));
    }
    return result;
  }

  /// Every layer must hold as many matrices, and the optional parts on all layers or on none.
  void check_granularity() const {
    const auto& [first_id, first] = *set_.layers.begin();
    for (const auto& [id, layer] : set_.layers) {
      if (layer.rotation.size() != first.rotation.size()) {
        refuse("layer {} has {} matrices, layer {} has {}", id, layer.rotation.size(), first_id,
               first.rotation.size());
      }
      if (layer.read.empty() != first.read.empty()) {
        refuse("\"{}\" is on layer {} but not on layer {}; it must be on all or on none",
               read_word(), first.read.empty() ? id : first_id, first.read.empty() ? first_id : id);
      }
      if (layer.mean.size() != first.mean.size()) {
        refuse("\"k_mean\" holds {} rows on layer {} but {} on layer {}", layer.mean.size(), id,
               first.mean.size(), first_id);
      }
    }
  }

  const TorchFile& file_;
  RotationSet set_;
};

void write_calibration(pickle::Writer& out, const Calibration& c) {
  out.string("calibration");
  out.begin_dict();
  const auto text = [&out](const char* key, const std::string& value) {
    out.string(key);
    out.string(value);
  };
  const auto number = [&out](const char* key, std::int64_t value) {
    out.string(key);
    out.integer(value);
  };
  text("generation_id", c.generation_id);
  text("model_path", c.model_path);
  text("model_revision", c.model_revision);
  text("model_fingerprint", c.model_fingerprint);
  text("prompt_sha256", c.prompt_sha256);
  number("tokens", c.tokens);
  number("global_q_heads", c.global_q_heads);
  number("global_kv_heads", c.global_kv_heads);
  out.string("post_rope");
  out.boolean(c.post_rope);
  text("accumulator_dtype", c.accumulator_dtype);
  out.end_dict();
}

/// Matrices or vectors of one layer, stacked per head or alone.
template <typename T>
void write_stack(TorchFileWriter& file, const std::vector<T>& parts, bool per_head) {
  std::vector<float> values;
  for (const T& part : parts) values.insert(values.end(), part.data(), part.data() + part.size());
  std::vector<std::int64_t> shape;
  if (per_head) shape.push_back(static_cast<std::int64_t>(parts.size()));
  shape.push_back(parts[0].rows());
  if (parts[0].cols() > 1) shape.push_back(parts[0].cols());
  file.tensor(values.data(), shape);
}

/// What format v3 says before the layers, format_version's value onwards.
void write_general_header(pickle::Writer& out, const RotationSet& rotations) {
  const bool is_key = rotations.side == Side::key;
  out.integer(3);
  out.string("source_grouping");
  out.string(rotations.granularity == Granularity::head ? "head" : "layer");
  out.string("transform");
  out.begin_dict();
  out.string(is_key ? "key" : "value");
  out.string(rotations.objective);
  if (is_key) {
    out.string("centered");
    out.boolean(rotations.is_centred());
  }
  out.string("orthogonal");
  out.boolean(rotations.is_orthogonal());
  out.end_dict();
}

}  // namespace

RotationSet load_rotations(const std::filesystem::path& path, Side side) {
  const TorchFile file(path);
  return Schema(file, side).read();
}

void save_rotations(const std::filesystem::path& path, const RotationSet& rotations) {
  const bool per_head = rotations.granularity == Granularity::head;
  TorchFileWriter file;
  pickle::Writer& out = file.pickle();
  out.begin_dict();
  out.string("format_version");
  if (rotations.is_general()) {
    write_general_header(out, rotations);
  } else {
    out.integer(format_of(rotations));
    out.string("objective");
    out.string(rotations.objective);
    out.string("source_grouping");
    out.string(per_head ? "per_kv_head" : "layer");
  }
  if (rotations.calibration) write_calibration(out, *rotations.calibration);
  out.string("layers");
  out.begin_dict();
  for (const auto& [id, layer] : rotations.layers) {
    out.integer(id);
    out.begin_dict();
    out.string("layer_id");
    out.integer(id);
    out.string("rotation");
    write_stack(file, layer.rotation, per_head);
    if (!layer.eigenvalues.empty()) {
      out.string("eigenvalues");
      write_stack(file, layer.eigenvalues, per_head);
    }
    if (!layer.read.empty()) {
      out.string(rotations.side == Side::key ? "q_rotation" : "o_rotation");
      write_stack(file, layer.read, per_head);
    }
    if (!layer.mean.empty()) {
      out.string("k_mean");
      write_stack(file, layer.mean, layer.mean.size() > 1 || per_head);
    }
    out.end_dict();
  }
  out.end_dict();
  out.end_dict();
  write_file(path, file.finish(path.stem().string()));
}

int format_of(const RotationSet& rotations) {
  if (rotations.is_general()) return 3;
  return rotations.granularity == Granularity::head ? 2 : 1;
}

std::string rotation_file_name(const RotationSet& rotations) {
  const char* side = rotations.side == Side::key ? "k" : "v";
  if (rotations.granularity == Granularity::head)
    return fmt::format("{}_rotation_perhead.pt", side);
  return fmt::format("{}_rotation_{}.pt", side, rotations.objective);
}

}  // namespace oscar
