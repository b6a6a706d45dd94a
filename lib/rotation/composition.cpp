#include "oscar/rotation/composition.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "oscar/core/error.h"
#include "oscar/linalg/hadamard.h"

namespace oscar {

namespace {

struct Named {
  Composition composition;
  const char* name;
  const char* factors;  ///< of U, H, O and P, left to right
};

constexpr std::array<Named, 10> kCompositions = {{
    {Composition::plain, "plain", "U"},
    {Composition::pbr, "pbr", "P"},
    {Composition::br, "br", "UP"},
    {Composition::br_h128, "br_h128", "UPH"},
    {Composition::r_h, "r_h", "UH"},
    {Composition::h_pbr, "h_pbr", "HP"},
    {Composition::h_r_pbr, "h_r_pbr", "HUP"},
    {Composition::h_pbr_r, "h_pbr_r", "HPU"},
    {Composition::r_h_pbr, "r_h_pbr", "UHP"},
    {Composition::r_o, "r_o", "UO"},
}};

const Named& entry(Composition composition) {
  return *std::find_if(kCompositions.begin(), kCompositions.end(),
                       [&](const Named& named) { return named.composition == composition; });
}

/// The product of the factors named, none of them U.
Matrix fixed_factors(std::string_view factors, const Vector& eigenvalues) {
  const auto size = static_cast<int>(eigenvalues.size());
  Matrix product = Matrix::Identity(size, size);
  for (const char factor : factors) {
    product *= factor == 'H'   ? hadamard(size)
               : factor == 'O' ? offset_hadamard(size)
                               : bit_reversal_permutation(eigenvalues);
  }
  return product;
}

/// The fixed factors to the left and to the right of U; U itself may be absent.
struct Sides {
  Matrix left, right;
  bool has_eigenvectors;
};

Sides sides_of(Composition composition, const Vector& eigenvalues) {
  const std::string_view factors = entry(composition).factors;
  const std::size_t at = std::min(factors.find('U'), factors.size());
  const bool found = at < factors.size();
  return {fixed_factors(factors.substr(0, at), eigenvalues),
          fixed_factors(factors.substr(found ? at + 1 : at), eigenvalues), found};
}

void check_shape(const Matrix& matrix, const Vector& eigenvalues) {
  if (eigenvalues.size() == 0 || matrix.rows() != eigenvalues.size() ||
      matrix.cols() != eigenvalues.size()) {
    fail_input("a matrix of {} x {} does not fit {} eigenvalues", matrix.rows(), matrix.cols(),
               eigenvalues.size());
  }
}

}  // namespace

Composition parse_composition(std::string_view word) {
  std::vector<const char*> names;
  for (const Named& named : kCompositions) {
    if (word == named.name) return named.composition;
    names.push_back(named.name);
  }
  fail_input("\"{}\" is not a composition; there are {}", word, fmt::join(names, ", "));
}

const char* name_of(Composition composition) {
  return entry(composition).name;
}

const std::vector<Composition>& all_compositions() {
  static const std::vector<Composition> all = [] {
    std::vector<Composition> result;
    for (const Named& named : kCompositions) result.push_back(named.composition);
    return result;
  }();
  return all;
}

Matrix bit_reversal_permutation(const Vector& eigenvalues) {
  const Eigen::Index size = eigenvalues.size();
  std::vector<Eigen::Index> by_value(static_cast<std::size_t>(size));
  std::iota(by_value.begin(), by_value.end(), 0);
  std::stable_sort(by_value.begin(), by_value.end(),
                   [&](Eigen::Index a, Eigen::Index b) { return eigenvalues[a] > eigenvalues[b]; });
  const std::vector<int> place = bit_reversal_order(static_cast<int>(size));
  Matrix permutation = Matrix::Zero(size, size);
  for (std::size_t rank = 0; rank < by_value.size(); ++rank)
    permutation(by_value[rank], place[rank]) = 1;
  return permutation;
}

Matrix compose(Composition composition, const Matrix& eigenvectors, const Vector& eigenvalues) {
  check_shape(eigenvectors, eigenvalues);
  const Sides sides = sides_of(composition, eigenvalues);
  if (!sides.has_eigenvectors) return sides.left;
  return sides.left * eigenvectors * sides.right;
}

Matrix decompose(Composition composition, const Matrix& rotation, const Vector& eigenvalues) {
  check_shape(rotation, eigenvalues);
  const Sides sides = sides_of(composition, eigenvalues);
  if (!sides.has_eigenvectors) {
    fail_input("the composition {} holds no eigenvectors to recover", name_of(composition));
  }
  return sides.left.transpose() * rotation * sides.right.transpose();
}

}  // namespace oscar
