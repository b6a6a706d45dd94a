#pragma once

#include "oscar/rotation/objective.h"

/// Every objective's one instance, defined in the file of its name. objectives() (list.cpp) gathers
/// them.
namespace oscar {

const Objective& ktk_objective();
const Objective& qqt_objective();
const Objective& stretch_objective(Side side);
const Objective& flat_objective(Side side);
const Objective& whiten_objective(Side side);
const Objective& vtv_objective();
const Objective& sst_objective();
const Objective& sst_surrogate_objective();
const Objective& attended_objective(Side side);
const Objective& stretch_attended_objective(Side side);
const Objective& uresidual_objective(Side side);
const Objective& hadamard_objective(Side side);
const Objective& identity_objective(Side side);

}  // namespace oscar
