#include <charconv>
#include <limits>
#include <sstream>

#include "oscar/core/error.h"
#include "statistics/fields.h"
#include "statistics/hdf5.h"

namespace oscar {

namespace {

constexpr std::int64_t kMaxLayers = 10'000;
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxDim = 1 << 14;
constexpr std::int64_t kMaxSamples = 1 << 24;

std::int64_t read_count(hid_t object, const std::string& name, std::int64_t low, std::int64_t high,
                        const std::string& where) {
  const std::int64_t value = hdf5::read_integer(object, name, where);
  if (value < low || value > high) {
    fail_input("{}: the attribute \"{}\" is {}, expected {} to {}", where, name, value, low, high);
  }
  return value;
}

/// One array a head from one dataset [heads, rows, columns]; rows of 0 axes make a vector.
template <typename Array>
std::vector<Array> read_heads(hid_t group, const char* name, int heads, Eigen::Index rows, int dim,
                              const std::string& where) {
  using Scalar = typename Array::Scalar;
  std::vector<hsize_t> shape = {static_cast<hsize_t>(heads), static_cast<hsize_t>(rows)};
  if (Array::ColsAtCompileTime != 1) shape.push_back(static_cast<hsize_t>(dim));
  const std::vector<Scalar> all = hdf5::read_array<Scalar>(group, name, shape, where);
  const Eigen::Index columns = Array::ColsAtCompileTime == 1 ? 1 : dim;
  std::vector<Array> result;
  for (int head = 0; head < heads; ++head) {
    result.push_back(Eigen::Map<const Array>(all.data() + head * rows * columns, rows, columns));
  }
  return result;
}

LayerStatistics read_sums(hid_t group, const std::string& where) {
  LayerStatistics layer;
  layer.kv_heads = static_cast<int>(read_count(group, "kv_heads", 1, kMaxHeads, where));
  layer.q_heads = static_cast<int>(read_count(group, "q_heads", 1, kMaxHeads, where));
  layer.head_dim = static_cast<int>(read_count(group, "head_dim", 1, kMaxDim, where));
  layer.value_dim = static_cast<int>(read_count(group, "value_dim", 1, kMaxDim, where));
  layer.tokens = read_count(group, "tokens", 0, std::numeric_limits<std::int64_t>::max(), where);
  for (const auto& field : kOuterFields) {
    const int dim = layer.*field.dim;
    layer.*field.member = read_heads<Matrix>(group, field.name, layer.kv_heads, dim, dim, where);
  }
  for (const auto& field : kSumFields) {
    const int dim = layer.*field.dim;
    layer.*field.member = read_heads<Vector>(group, field.name, layer.kv_heads, dim, dim, where);
  }
  return layer;
}

/// The half of a layer whose own data are read already.
LayerStatistics read_half(hid_t layer_group, const LayerStatistics& layer,
                          const std::string& where) {
  const hdf5::Handle group = hdf5::open_group(layer_group, kHalf, where);
  LayerStatistics half = read_sums(group, where);
  const std::int64_t rows = read_count(group, kHalfSamples, 0, layer.samples(), where);
  if (rows == 0) return half;
  const auto first_rows = [rows](const std::vector<MatrixF>& samples) {
    std::vector<MatrixF> result;
    for (const MatrixF& head : samples) result.push_back(head.topRows(rows));
    return result;
  };
  for (const auto& field : kSampleFields) half.*field.member = first_rows(layer.*field.member);
  half.sample_attention = first_rows(layer.sample_attention);
  return half;
}

LayerStatistics read_layer(hid_t group, const std::string& where) {
  LayerStatistics layer = read_sums(group, where);
  if (hdf5::has_member(group, kOutputMetric.name)) {
    layer.output_metric = read_heads<Matrix>(group, kOutputMetric.name, layer.kv_heads,
                                             layer.value_dim, layer.value_dim, where);
  }
  for (const auto& field : kSampleFields) {
    if (!hdf5::has_member(group, field.name)) continue;
    const auto rows = static_cast<std::int64_t>(hdf5::shape_of(group, field.name, 3, where)[1]);
    if (rows < 1 || rows > kMaxSamples) {
      fail_input("{}: {} holds {} rows, expected 1 to {}", where, field.name, rows, kMaxSamples);
    }
    layer.*field.member =
        read_heads<MatrixF>(group, field.name, layer.kv_heads, rows, layer.*field.dim, where);
  }
  if (layer.samples() > 0 && hdf5::has_member(group, kSampleAttention)) {
    layer.sample_attention =
        read_heads<MatrixF>(group, kSampleAttention, layer.kv_heads, layer.samples(), 2, where);
  }
  if (hdf5::has_member(group, kHalf)) {
    layer.half.push_back(read_half(group, layer, where + "/" + kHalf));
  }
  layer.check(where);
  return layer;
}

int parse_layer_id(const std::string& name, const std::string& where) {
  int id = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
  if (error != std::errc{} || id < 0 || std::to_string(id) != name) {
    fail_input("{}: \"{}\" is not the number of a decoder layer", where, name);
  }
  return id;
}

void check_format(hid_t file, const char* expected, const std::string& where) {
  const std::string format = hdf5::read_text(file, "format", where);
  if (format != expected)
    fail_input("{}: its format is \"{}\", expected \"{}\"", where, format, expected);
  const std::int64_t version = hdf5::read_integer(file, "format_version", where);
  if (version < 1 || version > kFormatVersion) {
    fail_input(
        "{}: format version {} is unknown to this program, which reads up to {}; a newer oscar may "
        "have written it",
        where, version, kFormatVersion);
  }
}

std::map<int, LayerStatistics> read_layers(hid_t file, const std::string& where) {
  const hdf5::Handle layers = hdf5::open_group(file, "layers", where);
  std::map<int, LayerStatistics> result;
  for (const std::string& name : hdf5::members(layers, kMaxLayers, where + ": /layers")) {
    const int id = parse_layer_id(name, where + ": /layers");
    const std::string place = fmt::format("{}: /layers/{}", where, id);
    result.emplace(id, read_layer(hdf5::open_group(layers, name, place), place));
  }
  if (result.empty()) fail_input("{}: holds no layers", where);
  return result;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

Statistics load_statistics(const std::filesystem::path& path) {
  const std::string where = path.string();
  const hdf5::Session session;
  const hdf5::Handle file = hdf5::open_file(path);
  check_format(file, kFormat, where);
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  Statistics result;
  result.tool_version = hdf5::read_text(file, "tool_version", where);
  result.model = hdf5::read_text(file, "model", where);
  result.model_fingerprint = hdf5::read_text(file, "model_fingerprint", where);
  result.tokenizer_fingerprint = hdf5::read_text(file, "tokenizer_fingerprint", where);
  result.dataset_sha256 = hdf5::read_text(file, "dataset_sha256", where);
  result.precision = hdf5::read_text(file, "precision", where);
  if (hdf5::has_attribute(file, "patch_sha256")) {
    result.patch_sha256 = hdf5::read_text(file, "patch_sha256", where);
  }
  result.tokens = read_count(file, "tokens", 0, kAny, where);
  result.sequences = read_count(file, "sequences", 0, kAny, where);
  result.sequence_length = read_count(file, "sequence_length", 0, kAny, where);
  result.surrogate_additive = read_count(file, "surrogate_additive", 0, 1, where) == 1;
  if (hdf5::has_attribute(file, "merged_from")) {
    result.merged_from = split_lines(hdf5::read_text(file, "merged_from", where));
  }
  result.layers = read_layers(file, where);
  return result;
}

LayerStatistics load_layer(const std::filesystem::path& path, int layer_id) {
  const std::string where = path.string();
  const hdf5::Session session;
  const hdf5::Handle file = hdf5::open_file(path);
  check_format(file, kLayerFormat, where);
  std::map<int, LayerStatistics> layers = read_layers(file, where);
  if (layers.size() != 1 || layers.begin()->first != layer_id) {
    fail_input("{}: holds layer {}{}, expected layer {} alone", where, layers.begin()->first,
               layers.size() > 1 ? " and others" : "", layer_id);
  }
  return std::move(layers.begin()->second);
}

}  // namespace oscar
