#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "oscar/linalg/matrix.h"

namespace oscar {

/// Which of the factors U (eigenvectors), H (Hadamard) and P (bit reversal) make up a rotation, in
/// the order of the product; named as the published files name them. O is ours: a Hadamard matrix
/// that lays the leading eigenvector along the direction that a row's zero point absorbs
/// (offset_hadamard), so that the largest component of every row costs no quantisation range.
enum class Composition {
  plain,    ///< U
  pbr,      ///< P
  br,       ///< U · P
  br_h128,  ///< U · P · H, whatever the size of H
  r_h,      ///< U · H
  h_pbr,    ///< H · P
  h_r_pbr,  ///< H · U · P
  h_pbr_r,  ///< H · P · U
  r_h_pbr,  ///< U · H · P, the paper's
  r_o,      ///< U · O
};

/// Throws InputError listing the names for another word.
Composition parse_composition(std::string_view word);
const char* name_of(Composition composition);
const std::vector<Composition>& all_compositions();

/// P of contract, section 1: column i of X comes to lie at the column of X · P that bit reversal
/// gives the rank of its eigenvalue, the largest first. Equal eigenvalues keep their order.
Matrix bit_reversal_permutation(const Vector& eigenvalues);

/// The product of the factors. `eigenvectors` [D,D] holds U's columns in the order of `eigenvalues`
/// [D].
Matrix compose(Composition composition, const Matrix& eigenvectors, const Vector& eigenvalues);

/// U from a rotation that compose() made: decompose(c, compose(c, U, λ), λ) = U. Throws InputError
/// for the compositions that do not hold U (pbr, h_pbr).
Matrix decompose(Composition composition, const Matrix& rotation, const Vector& eigenvalues);

}  // namespace oscar
