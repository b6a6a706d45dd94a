#include "oscar/linalg/hadamard.h"

#include <bit>
#include <cmath>

#include "oscar/core/error.h"

namespace oscar {

Matrix hadamard(int size) {
  if (size < 1) fail_input("a Hadamard matrix of size {} was asked for; sizes start at 1", size);
  Matrix result = Matrix::Zero(size, size);
  for (int offset = 0; offset < size;) {
    const int block = static_cast<int>(std::bit_floor(static_cast<unsigned>(size - offset)));
    const double entry = 1 / std::sqrt(static_cast<double>(block));
    for (int i = 0; i < block; ++i) {
      for (int j = 0; j < block; ++j) {
        const bool negative = std::popcount(static_cast<unsigned>(i & j)) % 2 == 1;
        result(offset + i, offset + j) = negative ? -entry : entry;
      }
    }
    offset += block;
  }
  return result;
}

Matrix offset_hadamard(int size) {
  const Matrix reversed = hadamard(size).colwise().reverse();
  const Vector constant = Vector::Constant(size, 1 / std::sqrt(static_cast<double>(size)));
  // The Householder reflection of the row space that takes the last row to the constant one.
  Vector axis = -(reversed * constant);
  axis[size - 1] += 1;
  const double squared = axis.squaredNorm();
  if (squared < 1e-24) return reversed;
  return reversed - (2 / squared) * axis * (axis.transpose() * reversed);
}

std::vector<int> bit_reversal_order(int size) {
  if (size < 1) fail_input("a bit reversal of size {} was asked for; sizes start at 1", size);
  const unsigned padded = std::bit_ceil(static_cast<unsigned>(size));
  const int bits = std::countr_zero(padded);
  std::vector<int> order;
  for (unsigned i = 0; i < padded; ++i) {
    unsigned reversed = 0;
    for (int bit = 0; bit < bits; ++bit) reversed |= ((i >> bit) & 1u) << (bits - 1 - bit);
    if (reversed < static_cast<unsigned>(size)) order.push_back(static_cast<int>(reversed));
  }
  return order;
}

}  // namespace oscar
