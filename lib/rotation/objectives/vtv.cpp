#include "rotation/objectives/list.h"
#include "rotation/objectives/moment.h"

namespace oscar {

namespace {

/// C_V of contract, section 1.
class Vtv : public MomentObjective {
 public:
  std::string_view name() const override { return "vtv"; }
  std::string_view summary() const override {
    return "second moment of the values (an ablation; published per-head files)";
  }

 private:
  std::string_view file_prefix() const override { return "vtv"; }
  Matrix moment(const FitUnit& unit, std::size_t head, bool) const override {
    return value_moment(*unit.statistics, head);
  }
};

}  // namespace

const Objective& vtv_objective() {
  static const Vtv objective;
  return objective;
}

}  // namespace oscar
