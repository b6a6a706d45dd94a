#include "rotation/objectives/uresidual.h"

#include "kvcache/arithmetic.h"
#include "oscar/core/error.h"
#include "rotation/objectives/list.h"

namespace oscar {

namespace {

/// One row that is one group, through the codec's arithmetic and back.
VectorF through_int2(const VectorF& row) {
  const arithmetic::ScaleZero group = arithmetic::scale_zero(row.minCoeff(), row.maxCoeff());
  return row.unaryExpr([group](float value) {
    return arithmetic::value_of(arithmetic::code_of(value, group), group);
  });
}

/// The released code's "uresidual": an importance basis (C_Q for keys, the surrogate C_S for
/// values) is turned so that its weightiest directions meet the smallest quantisation residuals of
/// a first rotation, which is the released recipe (qqt_r_h_pbr, sst_r_h_pbr).
class Uresidual : public Objective {
 public:
  explicit Uresidual(Side side) : side_(side) {}

  std::string_view name() const override { return "uresidual"; }
  std::string_view summary() const override {
    return "importance paired with the residuals of the released rotation; needs row samples (an "
           "ablation)";
  }
  std::string file_name(Composition) const override { return "uresidual"; }
  bool needs_samples() const override { return true; }

  std::vector<FittedMatrix> fit(std::span<const FitUnit> units,
                                const FitContext& context) const override {
    const Objective& importance = side_ == Side::key ? qqt_objective() : sst_surrogate_objective();
    const auto bases = importance.fit(units, {Composition::plain, context.device});
    std::vector<Matrix> residuals;
    for (std::size_t i = 0; i < units.size(); ++i) {
      const Matrix first = compose(Composition::r_h_pbr, bases[i].rotation, bases[i].eigenvalues);
      residuals.push_back(mean_residual(units[i], first));
    }
    const std::vector<Eigensystem> residual_bases = eigh(residuals, context.device);
    std::vector<FittedMatrix> result;
    for (std::size_t i = 0; i < units.size(); ++i) {
      const Eigensystem basis{bases[i].eigenvalues, bases[i].rotation};
      result.push_back({pair_residual_with_importance(residual_bases[i], basis), basis.values});
    }
    return result;
  }

 private:
  Matrix mean_residual(const FitUnit& unit, const Matrix& rotation) const {
    const LayerStatistics& layer = *unit.statistics;
    const auto& samples = side_ == Side::key ? layer.key_samples : layer.value_samples;
    if (layer.samples() < rotation.rows()) {
      fail_input(
          "layer {}: uresidual needs at least {} row samples in the statistics, which hold {}; "
          "calibrate again keeping samples, or choose another objective",
          unit.layer, rotation.rows(), layer.samples());
    }
    Matrix sum = Matrix::Zero(rotation.rows(), rotation.cols());
    for (const int head : unit.heads) {
      sum += residual_moment(samples[static_cast<std::size_t>(head)], rotation);
    }
    return sum / static_cast<double>(unit.heads.size());
  }

  Side side_;
};

}  // namespace

Matrix residual_moment(const MatrixF& rows, const Matrix& rotation) {
  const Matrix rotated = rows.cast<double>() * rotation;
  Matrix residual(rotated.rows(), rotated.cols());
  for (Eigen::Index i = 0; i < rotated.rows(); ++i) {
    const VectorF row = rotated.row(i).transpose().cast<float>();
    residual.row(i) = through_int2(row).cast<double>().transpose() - rotated.row(i);
  }
  const Matrix moment = residual.transpose() * residual / static_cast<double>(rows.rows());
  return (moment + moment.transpose()) / 2;
}

Matrix pair_residual_with_importance(const Eigensystem& residual, const Eigensystem& importance) {
  return residual.vectors * importance.vectors.rowwise().reverse().transpose();
}

const Objective& uresidual_objective(Side side) {
  static const Uresidual key(Side::key), value(Side::value);
  return side == Side::key ? key : value;
}

}  // namespace oscar
