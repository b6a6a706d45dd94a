#include "rotation/objectives/list.h"

#include "oscar/core/error.h"

namespace oscar {

const std::vector<const Objective*>& objectives(Side side) {
  static const std::vector<const Objective*> keys = {&qqt_objective(),
                                                     &ktk_objective(),
                                                     &attended_objective(Side::key),
                                                     &stretch_objective(Side::key),
                                                     &stretch_attended_objective(Side::key),
                                                     &flat_objective(Side::key),
                                                     &whiten_objective(Side::key),
                                                     &uresidual_objective(Side::key),
                                                     &hadamard_objective(Side::key),
                                                     &identity_objective(Side::key)};
  static const std::vector<const Objective*> values = {&sst_objective(),
                                                       &sst_surrogate_objective(),
                                                       &vtv_objective(),
                                                       &attended_objective(Side::value),
                                                       &stretch_objective(Side::value),
                                                       &stretch_attended_objective(Side::value),
                                                       &flat_objective(Side::value),
                                                       &whiten_objective(Side::value),
                                                       &uresidual_objective(Side::value),
                                                       &hadamard_objective(Side::value),
                                                       &identity_objective(Side::value)};
  return side == Side::key ? keys : values;
}

const Objective& find_objective(Side side, std::string_view name) {
  std::vector<std::string_view> names;
  for (const Objective* objective : objectives(side)) {
    if (objective->name() == name) return *objective;
    names.push_back(objective->name());
  }
  fail_input("\"{}\" is not an objective for {}; there are {}", name,
             side == Side::key ? "keys" : "values", fmt::join(names, ", "));
}

}  // namespace oscar
