#include "rotation/objectives/list.h"
#include "rotation/objectives/moment.h"

namespace oscar {

namespace {

/// C_K of contract, section 1; around the mean where keys are centred.
class Ktk : public MomentObjective {
 public:
  std::string_view name() const override { return "ktk"; }
  std::string_view summary() const override {
    return "second moment of the keys (the paper's ablation)";
  }

 private:
  std::string_view file_prefix() const override { return "ktk"; }
  Matrix moment(const FitUnit& unit, std::size_t head, bool centred) const override {
    return key_moment(*unit.statistics, head, centred);
  }
};

}  // namespace

const Objective& ktk_objective() {
  static const Ktk objective;
  return objective;
}

}  // namespace oscar
