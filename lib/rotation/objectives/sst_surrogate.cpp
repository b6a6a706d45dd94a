#include "rotation/objectives/list.h"
#include "rotation/objectives/moment.h"

namespace oscar {

namespace {

/// The surrogate of C_S that the released code computes; files name it as the exact one.
class SstSurrogate : public MomentObjective {
 public:
  std::string_view name() const override { return "sst-surrogate"; }
  std::string_view summary() const override {
    return "values weighted by their keys' energy in the query metric (the released code's)";
  }

 private:
  std::string_view file_prefix() const override { return "sst"; }
  Matrix moment(const FitUnit& unit, std::size_t head, bool) const override {
    const LayerStatistics& layer = *unit.statistics;
    return layer.weighted_value_outer[head] / static_cast<double>(layer.tokens);
  }
};

}  // namespace

const Objective& sst_surrogate_objective() {
  static const SstSurrogate objective;
  return objective;
}

}  // namespace oscar
