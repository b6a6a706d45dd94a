#include "oscar/linalg/power.h"

#include <cmath>

#include "oscar/core/error.h"

namespace oscar {

Matrix symmetric_power(const Eigensystem& system, double exponent, double floor) {
  const double largest = system.values.maxCoeff();
  if (!(largest > 0)) {
    fail_input("a power of a matrix without a positive eigenvalue was asked for (largest: {:g})",
               largest);
  }
  const Vector powers = system.values.cwiseMax(floor * largest).array().pow(exponent);
  return system.vectors * powers.asDiagonal() * system.vectors.transpose();
}

std::vector<Matrix> symmetric_powers(const std::vector<Matrix>& matrices, double exponent,
                                     const Device& device, double floor) {
  std::vector<Matrix> result;
  for (const Eigensystem& system : eigh(matrices, device)) {
    result.push_back(symmetric_power(system, exponent, floor));
  }
  return result;
}

}  // namespace oscar
