#include "oscar/linalg/hadamard.h"
#include "rotation/objectives/list.h"

namespace oscar {

namespace {

/// A rotation that no data enters: the baselines. The composition has no meaning for it; its
/// eigenvalues are ones, as in the published Hadamard files.
class Fixed : public Objective {
 public:
  Fixed(Side side, std::string_view name, std::string_view summary, Matrix (*make)(int))
      : side_(side), name_(name), summary_(summary), make_(make) {}

  std::string_view name() const override { return name_; }
  std::string_view summary() const override { return summary_; }
  std::string file_name(Composition) const override { return std::string(name_); }

  std::vector<FittedMatrix> fit(std::span<const FitUnit> units, const FitContext&) const override {
    std::vector<FittedMatrix> result;
    for (const FitUnit& unit : units) {
      const int dim = side_ == Side::key ? unit.statistics->head_dim : unit.statistics->value_dim;
      result.push_back({make_(dim), Vector::Ones(dim)});
    }
    return result;
  }

 private:
  Side side_;
  std::string_view name_, summary_;
  Matrix (*make_)(int);
};

Matrix identity(int size) {
  return Matrix::Identity(size, size);
}

}  // namespace

const Objective& hadamard_objective(Side side) {
  static const Fixed key(Side::key, "hadamard", "Hadamard matrix, no data (a baseline)", hadamard);
  static const Fixed value(Side::value, "hadamard", "Hadamard matrix, no data (a baseline)",
                           hadamard);
  return side == Side::key ? key : value;
}

const Objective& identity_objective(Side side) {
  static const Fixed key(Side::key, "identity", "no rotation (a baseline)", identity);
  static const Fixed value(Side::value, "identity", "no rotation (a baseline)", identity);
  return side == Side::key ? key : value;
}

}  // namespace oscar
