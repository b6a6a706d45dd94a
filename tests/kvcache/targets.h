#pragma once

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <vector>

namespace oscar::test {

/// Limits the CPU back end to one instruction set while it lives.
class WithTarget {
 public:
  explicit WithTarget(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
  }
  ~WithTarget() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
  WithTarget(const WithTarget&) = delete;
  WithTarget& operator=(const WithTarget&) = delete;
};

/// The instruction sets that the back end was built for and this processor has.
inline std::vector<std::int64_t> cpu_targets() {
  std::vector<std::int64_t> targets = {HWY_STATIC_TARGET};
  for (const std::int64_t target : {HWY_AVX2, HWY_AVX3}) {
    if (target != HWY_STATIC_TARGET && (hwy::SupportedTargets() & target) != 0) {
      targets.push_back(target);
    }
  }
  return targets;
}

}  // namespace oscar::test
