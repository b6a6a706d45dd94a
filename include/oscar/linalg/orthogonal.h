#pragma once

#include "oscar/linalg/matrix.h"

namespace oscar {

/// max |R·Rᵀ - I| over all entries, accumulated in float64: 0 for an orthonormal R. Infinity if R
/// holds a non-finite number. Throws InputError for a matrix that is not square.
double orthogonality_error(const MatrixF& rotation);
double orthogonality_error(const Matrix& rotation);

/// max |R·Qᵀ - I|: 0 where a query multiplied by Q meets keys multiplied by R unchanged. Infinity
/// if either holds a non-finite number. Throws InputError for matrices that are not square and of
/// one size. duality_error(R, R) is orthogonality_error(R).
double duality_error(const MatrixF& write, const MatrixF& read);
/// The largest entry of |R|·|Qᵀ|: how much a relative error of the entries is amplified in R·Qᵀ. At
/// most 1 for an orthonormal pair.
double duality_amplification(const MatrixF& write, const MatrixF& read);

/// Every entry rounded to the nearest bfloat16, as the serving engines do before they rotate.
MatrixF round_to_bfloat16(const MatrixF& matrix);

/// Principal angles in radians, ascending, between the subspaces spanned by the columns of `a`
/// [n,p] and of `b` [n,q]: min(p, q) of them. 0 for directions that both contain, π/2 for
/// perpendicular ones; exact to rounding at both ends (Björck and Golub 1973: cosines for large
/// angles, sines for small ones). Throws InputError if the row counts differ, or if a matrix is
/// empty or its columns are linearly dependent.
Vector principal_angles(const Matrix& a, const Matrix& b);

}  // namespace oscar
