#pragma once

#include <vector>

#include "oscar/linalg/matrix.h"

namespace oscar {

/// Sylvester's Hadamard matrix / sqrt(size), symmetric and orthonormal. A size that is not a power
/// of two gets the block diagonal of its binary parts, largest first (192 = 128 + 64). Throws
/// InputError if size < 1.
Matrix hadamard(int size);

/// An orthonormal matrix whose last row is constant, 1 / sqrt(size): the rows of hadamard(size) in
/// reverse order, and where the size is not a power of two, reflected so that they end with it.
/// What it maps onto its last row shifts all entries of a row by the same number, which the zero
/// point of an asymmetric quantiser takes up. Throws InputError if size < 1.
Matrix offset_hadamard(int size);

/// Bit reversal over the next power of two, entries >= size dropped: element i is where position i
/// goes. For a power of two, order[i] is i with its bits reversed.
std::vector<int> bit_reversal_order(int size);

}  // namespace oscar
