#include "oscar/rotation/health.h"

#include <algorithm>
#include <cmath>

#include "oscar/core/error.h"

namespace oscar {

namespace {

constexpr double kRankTolerance = 1e-9;
constexpr double kParticipationLimit = 0.015;
constexpr std::int64_t kComfortableTokensPerDimension = 16;

bool holds_data(const VectorF& eigenvalues) {
  return eigenvalues.size() > 0 && (eigenvalues.array() != eigenvalues[0]).any();
}

/// Rows behind one matrix: every token gives a row for each head that shares it, and for each query
/// head that reads it if the moment is one of queries or attention outputs.
std::int64_t rows_of(const RotationSet& set) {
  if (!set.calibration || set.calibration->tokens < 1) return 0;
  const Calibration& calibration = *set.calibration;
  const bool grouped = set.objective.starts_with("qqt") || set.objective.starts_with("sst");
  const std::int64_t heads = grouped ? calibration.global_q_heads : calibration.global_kv_heads;
  const std::int64_t share = set.granularity == Granularity::layer
                                 ? heads
                                 : heads / std::max<std::int64_t>(1, calibration.global_kv_heads);
  return calibration.tokens * std::max<std::int64_t>(1, share);
}

MatrixHealth measure(const RotationSet& set, int layer, std::size_t index,
                     const VectorF& eigenvalues) {
  MatrixHealth health;
  health.side = set.side;
  health.layer = layer;
  health.head = set.granularity == Granularity::layer ? -1 : static_cast<int>(index);
  health.participation = participation_ratio(eigenvalues);
  const double threshold = kRankTolerance * static_cast<double>(eigenvalues.maxCoeff());
  health.rank = static_cast<int>((eigenvalues.cast<double>().array() > threshold).count());
  health.dimension = static_cast<int>(eigenvalues.size());
  health.rows = rows_of(set);
  return health;
}

double share(const MatrixHealth& health) {
  return health.participation / health.attainable();
}

std::string name(const MatrixHealth& health) {
  const std::string layer = fmt::format("layer {}", health.layer);
  return health.head < 0 ? layer : fmt::format("{} head {}", layer, health.head);
}

/// `which` in words: the first few, and how many more.
std::string list(const std::vector<const MatrixHealth*>& which) {
  constexpr std::size_t kShown = 4;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(which.size(), kShown); ++i) names.push_back(name(*which[i]));
  std::string text = fmt::format("{}", fmt::join(names, ", "));
  if (which.size() > kShown) text += fmt::format(" and {} more", which.size() - kShown);
  return text;
}

template <typename Predicate>
std::vector<const MatrixHealth*> select(const std::vector<MatrixHealth>& all, Predicate predicate) {
  std::vector<const MatrixHealth*> result;
  for (const MatrixHealth& health : all) {
    if (predicate(health)) result.push_back(&health);
  }
  return result;
}

}  // namespace

const char* name_of(Health health) {
  return health == Health::good ? "good" : health == Health::weak ? "weak" : "bad";
}

double MatrixHealth::attainable() const {
  return static_cast<double>(rows > 0 ? std::min<std::int64_t>(dimension, rows) : dimension);
}

double participation_ratio(const VectorF& eigenvalues) {
  const Eigen::ArrayXd values = eigenvalues.cast<double>().array().max(0);
  const double squares = values.square().sum();
  return squares > 0 ? values.sum() * values.sum() / squares : 0;
}

HealthReport check_health(const RotationSet& rotations) {
  const char* side = rotations.side == Side::key ? "keys" : "values";
  HealthReport report;
  for (const auto& [id, layer] : rotations.layers) {
    for (std::size_t i = 0; i < layer.eigenvalues.size(); ++i) {
      if (!holds_data(layer.eigenvalues[i])) continue;
      report.matrices.push_back(measure(rotations, id, i, layer.eigenvalues[i]));
    }
  }
  if (report.matrices.empty()) {
    report.message = fmt::format("{}: no calibration data enters these rotations", side);
    return report;
  }
  const auto& all = report.matrices;
  int dimension = 0;
  std::vector<double> shares;
  for (const MatrixHealth& health : all) {
    dimension = std::max(dimension, health.dimension);
    shares.push_back(share(health));
  }
  std::sort(shares.begin(), shares.end());
  const double median = shares[shares.size() / 2];
  const std::int64_t tokens = rotations.calibration ? rotations.calibration->tokens : 0;
  const auto deficient = select(all, [](const MatrixHealth& h) { return h.rank < h.dimension; });
  const auto narrow =
      select(all, [](const MatrixHealth& h) { return share(h) < kParticipationLimit; });
  if (tokens > 0 && tokens < dimension) {
    report.verdict = Health::bad;
    report.message = fmt::format(
        "{}: {} calibration tokens cannot determine {} directions; use at least {} tokens", side,
        tokens, dimension, kComfortableTokensPerDimension * dimension);
  } else if (!deficient.empty()) {
    report.verdict = Health::bad;
    report.message = fmt::format(
        "{}: the calibration data spans only {} of {} directions in {}; the rotation is arbitrary "
        "in the "
        "others. Use more, and more varied, text",
        side, deficient.front()->rank, deficient.front()->dimension, list(deficient));
  } else if (median < kParticipationLimit) {
    report.verdict = Health::bad;
    report.message = fmt::format(
        "{}: nearly everything lies in one direction (typical participation ratio {:.1f} % of what "
        "is "
        "attainable); either the text repeats itself, or the model adds a large constant (key "
        "biases) that "
        "no rotation removes",
        side, 100 * median);
  } else if (tokens > 0 && tokens < kComfortableTokensPerDimension * dimension) {
    report.verdict = Health::weak;
    report.message =
        fmt::format("{}: {} calibration tokens for {} dimensions are few; {} or more are better",
                    side, tokens, dimension, kComfortableTokensPerDimension * dimension);
  } else if (!narrow.empty()) {
    report.verdict = Health::weak;
    report.message = fmt::format(
        "{}: nearly everything lies in one direction in {} (participation ratio {:.2f} of {:.0f}); "
        "look at "
        "these layers in the validation",
        side, list(narrow), narrow.front()->participation, narrow.front()->attainable());
  } else {
    report.message = fmt::format(
        "{}: the data supports the rotations (typical participation ratio {:.0f} % "
        "of what is attainable)",
        side, 100 * median);
  }
  return report;
}

HealthReport check_health(const RotationPair& pair) {
  HealthReport report = check_health(pair.key);
  HealthReport values = check_health(pair.value);
  const bool same = report.verdict == values.verdict;
  if (same) {
    report.message += "; " + values.message;
  } else if (values.verdict > report.verdict) {
    report.message = values.message;
  }
  report.verdict = std::max(report.verdict, values.verdict);
  report.matrices.insert(report.matrices.end(), values.matrices.begin(), values.matrices.end());
  return report;
}

}  // namespace oscar
