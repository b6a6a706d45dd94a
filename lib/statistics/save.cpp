#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "statistics/fields.h"
#include "statistics/hdf5.h"

namespace oscar {

namespace {

/// One dataset [heads, rows, columns] (or [heads, columns]) from one array a head.
template <typename Array>
void write_heads(hid_t group, const char* name, const std::vector<Array>& heads) {
  using Scalar = typename Array::Scalar;
  const Array& first = heads.front();
  std::vector<Scalar> all;
  all.reserve(heads.size() * static_cast<std::size_t>(first.size()));
  for (const Array& head : heads) all.insert(all.end(), head.data(), head.data() + head.size());
  std::vector<hsize_t> shape = {heads.size(), static_cast<hsize_t>(first.rows())};
  if (Array::ColsAtCompileTime != 1) shape.push_back(static_cast<hsize_t>(first.cols()));
  hdf5::write_array(group, name, shape, all.data());
}

void write_sums(hid_t group, const LayerStatistics& layer) {
  hdf5::write_attribute(group, "kv_heads", layer.kv_heads);
  hdf5::write_attribute(group, "q_heads", layer.q_heads);
  hdf5::write_attribute(group, "head_dim", layer.head_dim);
  hdf5::write_attribute(group, "value_dim", layer.value_dim);
  hdf5::write_attribute(group, "tokens", layer.tokens);
  for (const auto& field : kOuterFields) write_heads(group, field.name, layer.*field.member);
  for (const auto& field : kSumFields) write_heads(group, field.name, layer.*field.member);
}

void write_layer(hid_t layers, int id, const LayerStatistics& layer) {
  layer.check(fmt::format("layer {}", id));
  const hdf5::Handle group = hdf5::create_group(layers, std::to_string(id));
  write_sums(group, layer);
  if (!layer.output_metric.empty()) write_heads(group, kOutputMetric.name, layer.output_metric);
  if (!layer.half.empty()) {
    const hdf5::Handle half = hdf5::create_group(group, kHalf);
    write_sums(half, layer.half[0]);
    hdf5::write_attribute(half, kHalfSamples, layer.half[0].samples());
  }
  if (layer.samples() == 0) return;
  for (const auto& field : kSampleFields) write_heads(group, field.name, layer.*field.member);
  if (!layer.sample_attention.empty()) write_heads(group, kSampleAttention, layer.sample_attention);
}

std::string join(const std::vector<std::string>& lines) {
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace

void save_statistics(const std::filesystem::path& path, const Statistics& statistics) {
  AtomicFile target(path);
  {
    const hdf5::Session session;
    const hdf5::Handle file = hdf5::create_file(target.temporary_path());
    hdf5::write_attribute(file, "format", kFormat);
    hdf5::write_attribute(file, "format_version", kFormatVersion);
    hdf5::write_attribute(file, "tool_version", statistics.tool_version);
    hdf5::write_attribute(file, "model", statistics.model);
    hdf5::write_attribute(file, "model_fingerprint", statistics.model_fingerprint);
    hdf5::write_attribute(file, "tokenizer_fingerprint", statistics.tokenizer_fingerprint);
    hdf5::write_attribute(file, "dataset_sha256", statistics.dataset_sha256);
    hdf5::write_attribute(file, "tokens", statistics.tokens);
    hdf5::write_attribute(file, "sequences", statistics.sequences);
    hdf5::write_attribute(file, "sequence_length", statistics.sequence_length);
    hdf5::write_attribute(file, "precision", statistics.precision);
    if (!statistics.patch_sha256.empty()) {
      hdf5::write_attribute(file, "patch_sha256", statistics.patch_sha256);
    }
    hdf5::write_attribute(file, "surrogate_additive", std::int64_t{statistics.surrogate_additive});
    if (!statistics.merged_from.empty()) {
      hdf5::write_attribute(file, "merged_from", join(statistics.merged_from));
    }
    const hdf5::Handle layers = hdf5::create_group(file, "layers");
    for (const auto& [id, layer] : statistics.layers) write_layer(layers, id, layer);
    hdf5::flush(file);
  }
  target.commit();
}

void save_layer(const std::filesystem::path& path, int layer_id, const LayerStatistics& layer) {
  AtomicFile target(path);
  {
    const hdf5::Session session;
    const hdf5::Handle file = hdf5::create_file(target.temporary_path());
    hdf5::write_attribute(file, "format", kLayerFormat);
    hdf5::write_attribute(file, "format_version", kFormatVersion);
    const hdf5::Handle layers = hdf5::create_group(file, "layers");
    write_layer(layers, layer_id, layer);
    hdf5::flush(file);
  }
  target.commit();
}

}  // namespace oscar
