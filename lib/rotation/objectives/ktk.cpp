#include "rotation/objectives/list.h"
#include "rotation/objectives/moment.h"

namespace oscar {

namespace {

/// C_K of contract, section 1.
class Ktk : public MomentObjective {
 public:
  std::string_view name() const override { return "ktk"; }
  std::string_view summary() const override {
    return "second moment of the keys (the paper's ablation)";
  }

 private:
  std::string_view file_prefix() const override { return "ktk"; }
  Matrix moment(const LayerStatistics& layer, std::size_t head) const override {
    return layer.key_outer[head] / static_cast<double>(layer.tokens);
  }
};

}  // namespace

const Objective& ktk_objective() {
  static const Ktk objective;
  return objective;
}

}  // namespace oscar
