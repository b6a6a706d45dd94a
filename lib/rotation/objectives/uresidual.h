#pragma once

#include "oscar/linalg/eigh.h"
#include "oscar/linalg/matrix.h"

/// The parts of the uresidual objective, apart so that they can be compared with the released code
/// one by one.
namespace oscar {

/// Second moment [D,D] of what INT2 loses of the rows [n,D] after `rotation`: one group a row, no
/// clip, no rounding to bf16, in the rotated basis; divided by n.
Matrix residual_moment(const MatrixF& rows, const Matrix& rotation);

/// R = E · Π · Uᵀ: Π pairs the direction of the smallest residual with that of the largest
/// importance. Both systems ascending; U are the importance's vectors, E the residual's.
Matrix pair_residual_with_importance(const Eigensystem& residual, const Eigensystem& importance);

}  // namespace oscar
