#include "rotation/objectives/list.h"
#include "rotation/objectives/moment.h"

namespace oscar {

namespace {

/// C_S of contract, section 1, with the real softmax and mask: V^T S^T S V.
class Sst : public MomentObjective {
 public:
  std::string_view name() const override { return "sst"; }
  std::string_view summary() const override {
    return "second moment of the attention outputs, exact (the paper's)";
  }

 private:
  std::string_view file_prefix() const override { return "sst"; }
  Matrix moment(const FitUnit& unit, std::size_t head, bool) const override {
    const LayerStatistics& layer = *unit.statistics;
    return layer.output_outer[head] / static_cast<double>(layer.query_rows());
  }
};

}  // namespace

const Objective& sst_objective() {
  static const Sst objective;
  return objective;
}

}  // namespace oscar
