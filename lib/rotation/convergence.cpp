#include "oscar/rotation/convergence.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <random>

#include "oscar/core/error.h"
#include "oscar/kvcache/codec.h"
#include "oscar/linalg/eigh.h"
#include "oscar/linalg/orthogonal.h"
#include "oscar/linalg/power.h"
#include "rotation/objectives/attended.h"
#include "rotation/objectives/moment.h"

namespace oscar {

namespace {

constexpr Eigen::Index kRows = 1024;  ///< scored of each layer, at least 64 of each head and half
constexpr int kResamples = 200;       ///< of the bootstrap

Eigen::Index rows_a_head(const LayerStatistics& layer) {
  return std::max<Eigen::Index>(64, kRows / 2 / layer.kv_heads);
}

/// Rows of one head in one half, and what their errors cost there.
struct Scored {
  MatrixF rows;    ///< [n,D]
  Matrix metric;   ///< [D,D]
  VectorF weight;  ///< [n]
};

/// Rows of a normal distribution with a head's mean and covariance.
MatrixF drawn_rows(Eigen::Index count, const Matrix& outer, const Vector& sum, double tokens,
                   std::mt19937_64& engine) {
  const Vector mean = sum / tokens;
  const Matrix covariance = outer / tokens - mean * mean.transpose();
  const Matrix root = symmetric_powers({covariance}, 0.5, Device{}).front();
  std::normal_distribution<double> normal;
  Matrix rows(count, mean.size());
  for (Eigen::Index i = 0; i < rows.size(); ++i) rows.data()[i] = normal(engine);
  return ((rows * root).rowwise() + mean.transpose()).cast<float>();
}

Scored scored_rows(const LayerStatistics& half, std::size_t head, Side side,
                   std::mt19937_64& engine) {
  const bool key = side == Side::key;
  Scored result;
  result.metric = error_cost(half, head, side);
  if (half.samples() == 0) {
    result.rows = drawn_rows(rows_a_head(half), (key ? half.key_outer : half.value_outer)[head],
                             (key ? half.key_sum : half.value_sum)[head],
                             static_cast<double>(half.tokens), engine);
    result.weight = VectorF::Ones(result.rows.rows());
    return result;
  }
  const MatrixF& samples = key ? half.key_samples[head] : half.value_samples[head];
  const VectorF weights = row_weights(half, head, side);
  const Eigen::Index count = std::min(rows_a_head(half), samples.rows());
  result.rows.resize(count, samples.cols());
  result.weight.resize(count);
  for (Eigen::Index i = 0; i < count; ++i) {  // evenly spread
    const Eigen::Index from = i * samples.rows() / count;
    result.rows.row(i) = samples.row(from);
    result.weight[i] = weights[from];
  }
  return result;
}

CodecSettings coding(int dim, double clip) {
  return {.dim = dim, .group = dim, .clip_ratio = clip, .rule = ClipRule::exact};
}

/// What the error of each row costs when it is stored under a rotation as the cache stores it.
Vector costs(const Scored& scored, const LayerRotation& rotation, std::size_t head, double clip) {
  const auto part = [head](const auto& parts) -> const auto& {
    return parts[parts.size() == 1 ? 0 : head];
  };
  MatrixF stored = scored.rows;
  if (!rotation.mean.empty()) stored.rowwise() -= part(rotation.mean).transpose();
  stored = round_to_bfloat16(stored * round_to_bfloat16(part(rotation.rotation)));
  const auto rows = stored.rows();
  const auto dim = static_cast<int>(stored.cols());
  const Int2Codec codec(coding(dim, clip));
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows) *
                                  codec.settings().bytes_per_row());
  std::vector<float> scales(static_cast<std::size_t>(2 * rows));
  const CodedRows coded = CodedRows::packed(codes.data(), scales.data(), rows, 1, codec.settings());
  MatrixF read(rows, dim);
  codec.encode(ConstRows::packed(stored.data(), ElementType::fp32, rows, 1, dim), coded);
  codec.decode(coded, MutableRows::packed(read.data(), ElementType::fp32, rows, 1, dim));
  const Matrix back = part(rotation.read_side()).template cast<double>();
  const Matrix error = (read - stored).cast<double>() * back.transpose();
  return (error * scored.metric)
      .cwiseProduct(error)
      .rowwise()
      .sum()
      .cwiseProduct(scored.weight.cast<double>());
}

/// Costs of all rows of a layer's side, heads counting equally: under the rotation of the other
/// half, and under that of all data.
struct Pooled {
  std::vector<double> crossed, whole;

  void add(const Vector& other, const Vector& all) {
    const double unit = all.mean();
    if (!(unit > 0)) return;
    for (Eigen::Index i = 0; i < all.size(); ++i) {
      crossed.push_back(other[i] / unit);
      whole.push_back(all[i] / unit);
    }
  }
};

void measure(const Pooled& pooled, std::mt19937_64& engine, LayerConvergence& result) {
  const std::size_t rows = pooled.whole.size();
  if (rows == 0) return;
  const auto excess_of = [&](const auto& row_of) {
    double crossed = 0, whole = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      const std::size_t row = row_of(i);
      crossed += pooled.crossed[row];
      whole += pooled.whole[row];
    }
    return crossed / whole - 1;
  };
  result.excess = excess_of([](std::size_t i) { return i; });
  double squares = 0;
  for (int sample = 0; sample < kResamples; ++sample) {
    const double other = excess_of([&](std::size_t) { return engine() % rows; });
    squares += (other - result.excess) * (other - result.excess);
  }
  result.spread = std::sqrt(squares / kResamples);
}

/// Between the leading quarters of the eigenvectors that two fits hold.
double angle_degrees(Composition composition, const LayerRotation& a, const LayerRotation& b) {
  double squares = 0;
  Eigen::Index count = 0;
  for (std::size_t i = 0; i < a.rotation.size(); ++i) {
    const auto leading = [&](const LayerRotation& layer) {
      const Eigen::Index dim = layer.rotation[i].rows();
      return Matrix(decompose(composition, layer.rotation[i].cast<double>(),
                              layer.eigenvalues[i].cast<double>())
                        .rightCols(std::max<Eigen::Index>(1, dim / 4)));
    };
    const Vector angles = principal_angles(leading(a), leading(b));
    squares += angles.squaredNorm();
    count += angles.size();
  }
  return std::sqrt(squares / static_cast<double>(count)) * 180 / std::numbers::pi;
}

/// Whether the eigenvectors can be taken out again: its name ends with a composition that has them.
bool holds_eigenvectors(const RotationSet& set, Composition composition) {
  return composition != Composition::pbr && composition != Composition::h_pbr &&
         set.objective.ends_with(std::string("_") + name_of(composition));
}

std::string percent(double part) {
  return fmt::format("{:.1f} %", 100 * part);
}

void judge(Convergence& result, std::int64_t tokens) {
  const double worst = std::max(result.key_excess, result.value_excess);
  result.verdict = worst <= kConverged ? Convergence::Verdict::enough : Convergence::Verdict::more;
  result.message = fmt::format(
      "rotations fitted on half of the text lose {} (keys) and {} (values) more on the "
      "other half than those fitted on all",
      percent(result.key_excess), percent(result.value_excess));
  result.message +=
      result.verdict == Convergence::Verdict::enough
          ? ": the text is enough"
          : fmt::format("; more text would help, about {} tokens",
                        static_cast<std::int64_t>(
                            std::ceil(static_cast<double>(tokens) * worst / kConverged / 1024)) *
                            1024);
}

/// The fits that are compared.
struct Fits {
  std::array<Statistics, 2> halves;
  std::array<RotationPair, 2> of_half;
  RotationPair of_all;
};

/// Throws InputError where a half lacks what the objective needs, or could not be stored.
Fits fit_halves(const Statistics& statistics, std::array<Statistics, 2> parts,
                const FitOptions& options, const Device& device) {
  for (const auto& [id, layer] : statistics.layers) {
    coding(layer.head_dim, options.k_clip).check();
    coding(layer.value_dim, options.v_clip).check();
  }
  Fits fits{std::move(parts), {}, fit(statistics, options, device)};
  for (std::size_t i = 0; i < 2; ++i) fits.of_half[i] = fit(fits.halves[i], options, device);
  return fits;
}

LayerConvergence compare(const Fits& fits, int id, Side side, const FitOptions& options) {
  const auto layer_of = [&](const RotationPair& pair) -> const LayerRotation& {
    return (side == Side::key ? pair.key : pair.value).layers.at(id);
  };
  const double clip = side == Side::key ? options.k_clip : options.v_clip;
  std::mt19937_64 engine(static_cast<std::uint64_t>(id));
  Pooled pooled;
  for (std::size_t half = 0; half < 2; ++half) {
    const LayerStatistics& data = fits.halves[half].layers.at(id);
    for (std::size_t head = 0; head < data.key_outer.size(); ++head) {
      const Scored rows = scored_rows(data, head, side, engine);
      pooled.add(costs(rows, layer_of(fits.of_half[1 - half]), head, clip),
                 costs(rows, layer_of(fits.of_all), head, clip));
    }
  }
  LayerConvergence result{.layer = id, .side = side, .angle_degrees = {}};
  measure(pooled, engine, result);
  const RotationSet& set = side == Side::key ? fits.of_all.key : fits.of_all.value;
  if (holds_eigenvectors(set, options.composition)) {
    result.angle_degrees =
        angle_degrees(options.composition, layer_of(fits.of_half[0]), layer_of(fits.of_half[1]));
  }
  return result;
}

double mean_excess(const std::vector<LayerConvergence>& layers, Side side) {
  double sum = 0;
  for (const LayerConvergence& layer : layers) sum += layer.side == side ? layer.excess : 0;
  return 2 * sum / static_cast<double>(layers.size());
}

}  // namespace

const char* name_of(Convergence::Verdict verdict) {
  constexpr std::array kNames = {"enough", "more", "unknown"};
  return kNames[static_cast<std::size_t>(verdict)];
}

Convergence check_convergence(const Statistics& statistics, FitOptions options,
                              const Device& device) {
  Convergence result;
  options.training.steps = 0;
  auto parts = halves(statistics);
  if (!parts) {
    result.message =
        "unknown, the statistics keep no halves to compare (one sequence, or an older program's "
        "file)";
    return result;
  }
  std::optional<Fits> fits;
  try {
    fits = fit_halves(statistics, std::move(*parts), options, device);
  } catch (const InputError& error) {
    result.message = fmt::format("unknown, half of the data cannot be fitted ({})", error.what());
    return result;
  }
  for (const Side side : {Side::key, Side::value}) {
    for (const auto& entry : statistics.layers) {
      result.layers.push_back({.layer = entry.first, .side = side, .angle_degrees = {}});
    }
  }
#pragma omp parallel for schedule(dynamic)
  for (std::size_t i = 0; i < result.layers.size(); ++i) {
    result.layers[i] = compare(*fits, result.layers[i].layer, result.layers[i].side, options);
  }
  result.key_excess = mean_excess(result.layers, Side::key);
  result.value_excess = mean_excess(result.layers, Side::value);
  judge(result, statistics.tokens);
  return result;
}

OrderedJson to_json(const Convergence& convergence) {
  OrderedJson layers = OrderedJson::array();
  for (const LayerConvergence& layer : convergence.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"side", layer.side == Side::key ? "key" : "value"},
                      {"excess", layer.excess},
                      {"spread", layer.spread},
                      {"angle_degrees", layer.angle_degrees ? OrderedJson(*layer.angle_degrees)
                                                            : OrderedJson(nullptr)}});
  }
  return {{"verdict", name_of(convergence.verdict)},
          {"message", convergence.message},
          {"key_excess", convergence.key_excess},
          {"value_excess", convergence.value_excess},
          {"layers", layers}};
}

}  // namespace oscar
