#include "reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "oscar/core/float16.h"

namespace oscar::test {
namespace {

float clip_threshold(const CodecSettings& settings, const float* row) {
  const int dim = settings.dim;
  if (settings.clip_ratio <= 0) return std::numeric_limits<float>::infinity();
  const int index = std::min(static_cast<int>(settings.clip_ratio * dim), dim - 1);
  std::vector<float> magnitudes(dim);
  for (int i = 0; i < dim; ++i) magnitudes[i] = std::fabs(row[i]);
  std::sort(magnitudes.begin(), magnitudes.end());
  if (settings.rule == ClipRule::exact) return magnitudes[index];
  float low = 0, high = magnitudes.back();
  int steps = 0;
  while ((dim >> steps) > 1) ++steps;  // bit_length(dim) - 1
  for (; steps > 0; --steps) {
    const float middle = (low + high) / 2;
    const auto above = std::count_if(magnitudes.begin(), magnitudes.end(),
                                     [&](float magnitude) { return magnitude > middle; });
    (above > dim - index ? low : high) = middle;
  }
  return high;
}

}  // namespace

std::vector<std::uint8_t> ReferenceRow::packed() const {
  const std::size_t quarter = codes.size() / 4;
  std::vector<std::uint8_t> bytes(quarter, 0);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    bytes[i % quarter] |= static_cast<std::uint8_t>(codes[i] << (2 * (i / quarter)));
  }
  return bytes;
}

ReferenceRow encode_reference(const CodecSettings& settings, const float* row) {
  ReferenceRow result{clip_threshold(settings, row), {}, {}, {}};
  for (int begin = 0; begin < settings.dim; begin += settings.group) {
    std::vector<float> y(row + begin, row + begin + settings.group);
    for (float& value : y) value = std::clamp(value, -result.threshold, result.threshold);
    const auto [low, high] = std::minmax_element(y.begin(), y.end());
    const float s = std::max(*high - *low, 1e-8f) / 3.0f;
    const float z = -*low / s;
    result.scales.push_back(s);
    result.zeros.push_back(z);
    for (const float value : y) {
      const float level = std::trunc(value / s + z + 0.5f);
      result.codes.push_back(static_cast<std::uint8_t>(std::clamp(level, 0.0f, 3.0f)));
    }
  }
  return result;
}

float stored(ScaleType type, float value) {
  if (type == ScaleType::bf16) return round_to_bfloat16(value);
  if (type == ScaleType::fp16)
    return half_to_float(float_to_half(std::clamp(value, -65504.f, 65504.f)));
  return value;
}

void ReferenceAttention::compute() {
  output_exact.assign(static_cast<std::size_t>(tokens) * query_heads * value_dim, 0);
  output_coded = output_exact;
  error_sums.assign(query_heads, 0);
  const int grouped = query_heads / kv_heads;
  const auto dot = [&](const std::vector<float>& q, const std::vector<float>& k, std::int64_t t,
                       std::int64_t j, int head) {
    double sum = 0;
    for (int i = 0; i < dim; ++i) {
      sum += double{q[(t * query_heads + head) * dim + i]} *
             k[(j * kv_heads + head / grouped) * dim + i];
    }
    return scale * sum;
  };
  for (int head = 0; head < query_heads; ++head) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::vector<double> weights(tokens, 0);
      double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
      for (std::int64_t j = 0; j <= t; ++j) {
        if (!window.sees(t, j)) continue;
        const double exact = dot(query_exact, key_exact, t, j, head);
        weights[j] = exact;
        if (!window.is_exact(t, j)) {
          weights[j] = dot(query_coded, key_coded, t, j, head);
          if (t >= first_query) error_sums[head] += (weights[j] - exact) * (weights[j] - exact);
        }
        maximum = std::max(maximum, weights[j]);
      }
      for (std::int64_t j = 0; j <= t; ++j) {
        weights[j] = window.sees(t, j) ? std::exp(weights[j] - maximum) : 0;
        sum += weights[j];
      }
      for (std::int64_t j = 0; j <= t; ++j) {
        if (!window.sees(t, j)) continue;
        const bool exact = window.is_exact(t, j);
        const std::vector<float>& values = exact ? value_exact : value_coded;
        double* out =
            (exact ? output_exact : output_coded).data() + (t * query_heads + head) * value_dim;
        for (int i = 0; i < value_dim; ++i) {
          out[i] += weights[j] / sum * values[(j * kv_heads + head / grouped) * value_dim + i];
        }
      }
    }
  }
}

std::vector<float> random_rows(std::size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<std::uint16_t> to_bfloat16(const std::vector<float>& values) {
  std::vector<std::uint16_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), float_to_bfloat16);
  return bits;
}

std::vector<float> from_bfloat16(const std::vector<std::uint16_t>& bits) {
  std::vector<float> values(bits.size());
  std::transform(bits.begin(), bits.end(), values.begin(), bfloat16_to_float);
  return values;
}

double relative_error(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}

}  // namespace oscar::test
