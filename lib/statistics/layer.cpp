#include "oscar/core/error.h"
#include "statistics/fields.h"

namespace oscar {

namespace {

/// Sums of products of equal factors differ across the diagonal only by the order of their
/// rounding.
constexpr double kSymmetryTolerance = 1e-6;

void check_outer(const Matrix& sum, int dim, const std::string& where) {
  if (sum.rows() != dim || sum.cols() != dim) {
    fail_input("{} is {} x {}, expected {} x {}", where, sum.rows(), sum.cols(), dim, dim);
  }
  if (!sum.allFinite()) fail_input("{} holds a non-finite number", where);
  if (sum.diagonal().minCoeff() < 0) {
    fail_input("{} has a negative number on its diagonal; a sum of squares was expected", where);
  }
  const double asymmetry = (sum - sum.transpose()).cwiseAbs().maxCoeff();
  if (asymmetry > kSymmetryTolerance * sum.diagonal().maxCoeff()) {
    fail_input("{} is not symmetric (by {:g}); a sum of outer products was expected", where,
               asymmetry);
  }
}

template <typename Field>
void check_heads(const LayerStatistics& layer, const Field& field, const std::string& where) {
  const std::size_t heads = (layer.*field.member).size();
  if (heads != static_cast<std::size_t>(layer.kv_heads)) {
    fail_input("{}: {} has {} heads, expected kv_heads = {}", where, field.name, heads,
               layer.kv_heads);
  }
}

void check_outer_field(const LayerStatistics& layer, const LayerField<Matrix>& field,
                       const std::string& where) {
  check_heads(layer, field, where);
  for (std::size_t h = 0; h < (layer.*field.member).size(); ++h) {
    check_outer((layer.*field.member)[h], layer.*field.dim,
                fmt::format("{}: {} of head {}", where, field.name, h));
  }
}

/// Two runs' rows of each head: the first `first` of either come first.
void join(std::vector<MatrixF>& mine, std::int64_t first, const std::vector<MatrixF>& theirs,
          std::int64_t their_first) {
  for (std::size_t h = 0; h < mine.size(); ++h) {
    const MatrixF a = mine[h];
    const MatrixF& b = theirs[h];
    mine[h].resize(a.rows() + b.rows(), a.cols());
    mine[h] << a.topRows(first), b.topRows(their_first), a.bottomRows(a.rows() - first),
        b.bottomRows(b.rows() - their_first);
  }
}

std::string describe(const LayerStatistics& layer) {
  return fmt::format("{} KV heads, {} query heads, key dimension {}, value dimension {}",
                     layer.kv_heads, layer.q_heads, layer.head_dim, layer.value_dim);
}

bool same_shape(const LayerStatistics& a, const LayerStatistics& b) {
  return a.kv_heads == b.kv_heads && a.q_heads == b.q_heads && a.head_dim == b.head_dim &&
         a.value_dim == b.value_dim;
}

/// A half has the layer's shape, and leaves something for the other one.
void check_half(const LayerStatistics& layer, const std::string& where) {
  const LayerStatistics& half = layer.half[0];
  half.check(where);
  if (!same_shape(half, layer) || half.tokens < 1 || half.tokens >= layer.tokens ||
      half.samples() > layer.samples()) {
    fail_input("{}: {} tokens and {} rows ({}), which are no part of {} tokens and {} rows ({})",
               where, half.tokens, half.samples(), describe(half), layer.tokens, layer.samples(),
               describe(layer));
  }
}

}  // namespace

LayerStatistics LayerStatistics::zeros(int kv_heads, int q_heads, int head_dim, int value_dim) {
  LayerStatistics result;
  result.kv_heads = kv_heads;
  result.q_heads = q_heads;
  result.head_dim = head_dim;
  result.value_dim = value_dim;
  const auto heads = static_cast<std::size_t>(kv_heads);
  for (const auto& field : kOuterFields) {
    const int dim = result.*field.dim;
    (result.*field.member).assign(heads, Matrix::Zero(dim, dim));
  }
  for (const auto& field : kSumFields) {
    (result.*field.member).assign(heads, Vector::Zero(result.*field.dim));
  }
  return result;
}

void LayerStatistics::merge(const LayerStatistics& other) {
  if (!same_shape(*this, other)) {
    fail_input("statistics of different shapes cannot be added: {} and {}", describe(*this),
               describe(other));
  }
  if ((samples() > 0) != (other.samples() > 0)) {
    fail_input("statistics with row samples cannot be added to statistics without ({} and {} rows)",
               samples(), other.samples());
  }
  const auto heads = static_cast<std::size_t>(kv_heads);
  tokens += other.tokens;
  for (const auto& field : kOuterFields) {
    for (std::size_t h = 0; h < heads; ++h) (this->*field.member)[h] += (other.*field.member)[h];
  }
  for (const auto& field : kSumFields) {
    for (std::size_t h = 0; h < heads; ++h) (this->*field.member)[h] += (other.*field.member)[h];
  }
  if (output_metric.empty()) output_metric = other.output_metric;
  const std::int64_t first = half.empty() ? 0 : half[0].samples();
  const std::int64_t other_first = other.half.empty() ? 0 : other.half[0].samples();
  for (const auto& field : kSampleFields) {
    join(this->*field.member, first, other.*field.member, other_first);
  }
  if (sample_attention.empty() != other.sample_attention.empty()) {
    sample_attention.clear();  // what only some rows have serves nobody
  } else {
    join(sample_attention, first, other.sample_attention, other_first);
  }
  if (half.empty() || other.half.empty()) {
    half.clear();
  } else {
    half[0].merge(other.half[0]);
  }
}

void LayerStatistics::check(const std::string& where) const {
  if (kv_heads < 1 || q_heads < 1 || head_dim < 1 || value_dim < 1 || q_heads % kv_heads != 0) {
    fail_input("{}: impossible shape: {} (query heads must be a multiple of KV heads)", where,
               describe(*this));
  }
  if (tokens < 0) fail_input("{}: a negative number of tokens ({})", where, tokens);
  for (const auto& field : kOuterFields) check_outer_field(*this, field, where);
  if (!output_metric.empty()) check_outer_field(*this, kOutputMetric, where);
  for (const auto& field : kSumFields) {
    check_heads(*this, field, where);
    for (std::size_t h = 0; h < (this->*field.member).size(); ++h) {
      const Vector& sum = (this->*field.member)[h];
      if (sum.size() != this->*field.dim || !sum.allFinite()) {
        fail_input("{}: {} of head {} has {} numbers (expected {}, all finite)", where, field.name,
                   h, sum.size(), this->*field.dim);
      }
    }
  }
  if (!half.empty()) check_half(*this, where + ", half");
  if (key_samples.empty() && value_samples.empty()) return;
  for (const auto& field : kSampleFields) {
    check_heads(*this, field, where);
    for (std::size_t h = 0; h < (this->*field.member).size(); ++h) {
      const MatrixF& rows = (this->*field.member)[h];
      if (rows.rows() != samples() || rows.cols() != this->*field.dim || !rows.allFinite()) {
        fail_input("{}: {} of head {} is {} x {} (expected {} x {}, all finite)", where, field.name,
                   h, rows.rows(), rows.cols(), samples(), this->*field.dim);
      }
    }
  }
  if (sample_attention.empty()) return;
  check_heads(*this,
              LayerField<MatrixF>{kSampleAttention, &LayerStatistics::sample_attention, nullptr},
              where);
  for (const MatrixF& attention : sample_attention) {
    if (attention.rows() != samples() || attention.cols() != 2 || !attention.allFinite() ||
        attention.minCoeff() < 0) {
      fail_input("{}: {} is {} x {} (expected {} x 2, all finite and not negative)", where,
                 kSampleAttention, attention.rows(), attention.cols(), samples());
    }
  }
}

}  // namespace oscar
