#include "validate/quantised_attention.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "oscar/kvcache/rotate.h"

namespace oscar {

namespace {

ElementType row_type(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? ElementType::bf16 : ElementType::fp32;
}

ConstRows rows(const at::Tensor& x) {
  return ConstRows::packed(x.const_data_ptr(), row_type(x), x.size(0), static_cast<int>(x.size(1)),
                           static_cast<int>(x.size(2)));
}

MutableRows mutable_rows(at::Tensor& x) {
  return MutableRows::packed(x.mutable_data_ptr(), row_type(x), x.size(0),
                             static_cast<int>(x.size(1)), static_cast<int>(x.size(2)));
}

/// Matrices or vectors of one shape, stacked: [n, D, D] or [n, D, 1].
template <typename T>
at::Tensor upload(const std::vector<T>& parts, const at::Device& device) {
  at::Tensor stacked = at::empty(
      {static_cast<std::int64_t>(parts.size()), parts[0].rows(), parts[0].cols()}, at::kFloat);
  float* out = stacked.mutable_data_ptr<float>();
  for (const T& part : parts) out = std::copy_n(part.data(), part.size(), out);
  return stacked.to(device);
}

/// Coded rows that own their memory.
struct Coded {
  at::Tensor codes, scales_zeros;
  CodecSettings settings;
  CodedRows view;

  Coded(const at::Tensor& like, const CodecSettings& codec) : settings(codec) {
    const std::int64_t tokens = like.size(0), heads = like.size(1);
    const auto bytes = at::TensorOptions(at::kByte).device(like.device());
    codes = at::empty({tokens, heads, codec.dim / 4}, bytes);
    scales_zeros = at::empty(
        {tokens, heads, static_cast<std::int64_t>(2 * codec.groups() * bytes_of(codec.scale_type))},
        bytes);
    view =
        CodedRows::packed(codes.mutable_data_ptr<std::uint8_t>(), scales_zeros.mutable_data_ptr(),
                          tokens, static_cast<int>(heads), codec);
  }
};

CodecSettings codec_settings(const ServedSettings& settings, std::int64_t dim, double clip) {
  CodecSettings codec;
  codec.dim = static_cast<int>(dim);
  codec.group = std::min(settings.group, codec.dim);
  codec.clip_ratio = clip;
  codec.rule = parse_clip_rule(settings.clip_rule);
  codec.scale_type = parse_scale_type(settings.scale_type);
  return codec;
}

}  // namespace

QuantisedAttention::QuantisedAttention(const RotationPair& pair, const ServedSettings& settings,
                                       Precision precision, const Device& device, bool quantise)
    : pair_(pair),
      settings_(settings),
      precision_(precision),
      where_{device},
      quantise_(quantise) {}

std::int64_t QuantisedAttention::coded_pairs(std::int64_t tokens, std::int64_t first) const {
  return MixedWindow{settings_.sink, settings_.recent}.coded_pairs(tokens, first);
}

void QuantisedAttention::load_layer(int layer, const at::Device& device) {
  const LayerRotation &key = pair_.key.layers.at(layer), &value = pair_.value.layers.at(layer);
  key_write_ = upload(key.rotation, device);
  key_read_ = upload(key.read_side(), device);
  value_write_ = upload(value.rotation, device);
  value_read_ = upload(value.read_side(), device);
  key_mean_ = key.mean.empty() ? at::Tensor() : upload(key.mean, device).squeeze(-1);
  cached_layer_ = layer;
}

QuantisedAttention::Result QuantisedAttention::attend(const AttentionEvent& event,
                                                      std::int64_t first) {
  if (cached_layer_ != event.layer) load_layer(event.layer, event.q.device());
  const auto rotations = [](const at::Tensor& matrices, bool transposed) {
    return Rotations{matrices.const_data_ptr<float>(), static_cast<int>(matrices.size(0)),
                     static_cast<int>(matrices.size(1)), transposed};
  };
  const bool served = precision_ == Precision::bf16;
  const RotationRounding rounding = {.input = served, .output = served};
  const auto rotated = [&](const at::Tensor& x, const at::Tensor& matrices,
                           bool transposed = false) {
    at::Tensor y = at::empty_like(x, at::MemoryFormat::Contiguous);
    rotate_rows(rows(x), rotations(matrices, transposed), mutable_rows(y), rounding, where_);
    return y;
  };
  const at::Tensor q = event.q.contiguous(), v = event.v.contiguous();
  // Both tiers hold centred keys: a query's logits all move by the same constant.
  const at::Tensor k = key_mean_.defined()
                           ? (event.k.to(at::kFloat) - key_mean_).to(event.k.scalar_type())
                           : event.k.contiguous();
  const std::int64_t tokens = q.size(0), q_heads = q.size(1), value_dim = v.size(2);
  const at::Tensor q_rotated = rotated(q, key_read_), k_rotated = rotated(k, key_write_),
                   v_rotated = rotated(v, value_write_);

  Coded k_coded(k, codec_settings(settings_, k.size(2), settings_.k_clip));
  Coded v_coded(v, codec_settings(settings_, value_dim, settings_.v_clip));
  if (quantise_) {
    Int2Codec(k_coded.settings).encode(rows(k_rotated), k_coded.view, where_);
    Int2Codec(v_coded.settings).encode(rows(v_rotated), v_coded.view, where_);
  }

  at::Tensor exact = at::empty({tokens, q_heads, value_dim}, v.options());
  at::Tensor coded = served ? exact : at::empty_like(exact);
  Result result;
  result.logit_error_sums = at::zeros({q_heads}, v.options().dtype(at::kDouble));
  TeacherForcedAttention problem;
  problem.query_exact = rows(served ? q_rotated : q);
  problem.query_coded = rows(q_rotated);
  problem.key_exact = rows(served ? k_rotated : k);
  problem.value_exact = rows(served ? v_rotated : v);
  problem.key_coded = k_coded.view;
  problem.value_coded = v_coded.view;
  problem.key_codec = k_coded.settings;
  problem.value_codec = v_coded.settings;
  problem.output_exact = mutable_rows(exact);
  problem.output_coded = mutable_rows(coded);
  problem.scale = static_cast<float>(event.scale);
  problem.window.sink = settings_.sink;
  problem.window.recent = quantise_ ? settings_.recent : tokens + 1;
  problem.first_output = first;
  problem.first_query = first;
  problem.logit_error_sums = result.logit_error_sums.mutable_data_ptr<double>();
  oscar::attend(problem, where_);

  result.output =
      served ? rotated(exact, value_read_, true) : exact + rotated(coded, value_read_, true);
  return result;
}

}  // namespace oscar
