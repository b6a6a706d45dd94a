#include "rotation/objectives/list.h"
#include "rotation/objectives/moment.h"

namespace oscar {

namespace {

/// C_Q of contract, section 1: an error in a key costs what the queries see of it.
class Qqt : public MomentObjective {
 public:
  std::string_view name() const override { return "qqt"; }
  std::string_view summary() const override {
    return "second moment of the queries that read the keys (the paper's)";
  }

 private:
  std::string_view file_prefix() const override { return "qqt"; }
  Matrix moment(const FitUnit& unit, std::size_t head, bool) const override {
    const LayerStatistics& layer = *unit.statistics;
    return layer.query_outer[head] / static_cast<double>(layer.query_rows());
  }
};

}  // namespace

const Objective& qqt_objective() {
  static const Qqt objective;
  return objective;
}

}  // namespace oscar
