#include "model/rope.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace oscar {

namespace {

/// Llama 3: long wavelengths are stretched by `factor`, short ones kept, those between
/// interpolated.
double llama3_frequency(double frequency, const RopeConfig& rope) {
  const auto original = static_cast<double>(rope.original_max_positions);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / rope.high_frequency_factor) return frequency;
  if (wavelength > original / rope.low_frequency_factor) return frequency / rope.factor;
  const double smooth = (original / wavelength - rope.low_frequency_factor) /
                        (rope.high_frequency_factor - rope.low_frequency_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

double yarn_mscale(double scale, double mscale) {
  return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

/// YaRN (arXiv 2309.00071): planes that turn often over the original context keep their frequency,
/// slow ones are stretched, with a ramp between.
RopeFrequencies yarn(const RopeConfig& rope, int dim) {
  RopeFrequencies result;
  const auto plane_of_turns = [&](double turns) {
    return dim *
           std::log(static_cast<double>(rope.original_max_positions) /
                    (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = plane_of_turns(rope.beta_fast), high = plane_of_turns(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  for (int i = 0; i < dim / 2; ++i) {
    const double frequency = std::pow(rope.theta, -2.0 * i / dim);
    const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
    result.inverse.push_back(frequency / rope.factor * ramp + frequency * (1 - ramp));
  }
  if (rope.attention_factor > 0) {
    result.attention_factor = rope.attention_factor;
  } else if (rope.mscale != 0 && rope.mscale_all_dim != 0) {
    result.attention_factor =
        yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
  } else {
    result.attention_factor = yarn_mscale(rope.factor, 1.0);
  }
  return result;
}

}  // namespace

RopeFrequencies rope_frequencies(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  if (rope.scaling == RopeConfig::Scaling::yarn) return yarn(rope, config.head_dim);
  RopeFrequencies result;
  for (int i = 0; i < config.head_dim / 2; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * i / config.head_dim);
    if (rope.scaling == RopeConfig::Scaling::linear) frequency /= rope.factor;
    if (rope.scaling == RopeConfig::Scaling::llama3) frequency = llama3_frequency(frequency, rope);
    result.inverse.push_back(frequency);
  }
  return result;
}

RopeTables rope_tables(const ModelConfig& config, std::int64_t positions,
                       const at::Device& device) {
  const RopeFrequencies frequencies = rope_frequencies(config);
  // float32 throughout, as transformers: position times inverse frequency, then cosine and sine.
  const at::Tensor inverse = at::tensor(frequencies.inverse, at::kDouble).to(at::kFloat);
  const at::Tensor angles = at::arange(positions, at::kFloat).unsqueeze(1) * inverse.unsqueeze(0);
  const at::Tensor both = at::cat({angles, angles}, 1);
  return {(both.cos() * frequencies.attention_factor).to(device),
          (both.sin() * frequencies.attention_factor).to(device)};
}

at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor turned = at::cat({x.slice(-1, half).neg(), x.slice(-1, 0, half)}, -1);
  return x * cos + turned * sin;
}

}  // namespace oscar
