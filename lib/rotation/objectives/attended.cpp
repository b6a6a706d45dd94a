#include "rotation/objectives/attended.h"

#include "oscar/core/error.h"
#include "rotation/objectives/list.h"
#include "rotation/objectives/moment.h"

namespace oscar {

VectorF attention_weights(const LayerStatistics& layer, std::size_t head, Side side) {
  const VectorF received =
      layer.sample_attention.at(head).col(side == Side::key ? 0 : 1).cwiseMax(0.0f);
  const float mean = received.mean();
  if (!(mean > 0)) return VectorF::Ones(received.size());  // sequences inside the windows
  constexpr float kLeast = 1e-3f;
  const VectorF weights = (received / mean).cwiseMax(kLeast).cwiseSqrt();
  return weights / weights.mean();
}

VectorF row_weights(const LayerStatistics& layer, std::size_t head, Side side) {
  return layer.sample_attention.empty() ? VectorF(VectorF::Ones(layer.samples()))
                                        : attention_weights(layer, head, side);
}

Matrix attended_moment(const FitUnit& unit, std::size_t head, Side side, bool centred) {
  const LayerStatistics& layer = *unit.statistics;
  const auto& samples = side == Side::key ? layer.key_samples : layer.value_samples;
  const int dim = side == Side::key ? layer.head_dim : layer.value_dim;
  if (layer.samples() < dim || layer.sample_attention.empty()) {
    fail_input(
        "layer {}: rows weighted by attention need at least {} samples with their attention; the "
        "statistics hold {}{}; calibrate again with --samples 1024",
        unit.layer, dim, layer.samples(),
        layer.samples() > 0 && layer.sample_attention.empty() ? " without it" : "");
  }
  Matrix rows = samples[head].cast<double>();
  if (centred) {
    rows.rowwise() -= (layer.key_sum[head] / static_cast<double>(layer.tokens)).transpose();
  }
  const Vector weights = attention_weights(layer, head, side).cast<double>();
  return rows.transpose() * weights.asDiagonal() * rows / static_cast<double>(rows.rows());
}

namespace {

/// Keys' or values' second moment over the rows that attention reads.
class Attended : public MomentObjective {
 public:
  explicit Attended(Side side) : side_(side) {}
  std::string_view name() const override {
    return side_ == Side::key ? "ktk-attended" : "vtv-attended";
  }
  std::string_view summary() const override {
    return side_ == Side::key
               ? "second moment of the keys, weighted by the attention that they receive"
               : "second moment of the values, weighted by the attention that they receive";
  }
  bool needs_samples() const override { return true; }

 private:
  std::string_view file_prefix() const override {
    return side_ == Side::key ? "ktk_attended" : "vtv_attended";
  }
  Matrix moment(const FitUnit& unit, std::size_t head, bool centred) const override {
    return attended_moment(unit, head, side_, centred);
  }

  Side side_;
};

}  // namespace

const Objective& attended_objective(Side side) {
  static const Attended key(Side::key), value(Side::value);
  return side == Side::key ? key : value;
}

}  // namespace oscar
