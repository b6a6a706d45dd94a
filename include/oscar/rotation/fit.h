#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "oscar/core/device.h"
#include "oscar/rotation/composition.h"
#include "oscar/rotation/health.h"
#include "oscar/rotation/objective.h"
#include "oscar/rotation/rotation_set.h"
#include "oscar/rotation/training.h"
#include "oscar/statistics/statistics.h"

namespace oscar {

/// What to fit. The defaults are the paper's.
struct FitOptions {
  std::string key = "qqt";  ///< an objective for keys: qqt, ktk, stretch, ... (objectives())
  std::string value =
      "sst";  ///< for values: sst (exact), sst-surrogate, vtv, uresidual, hadamard, identity
  Granularity granularity = Granularity::layer;
  Composition composition = Composition::r_h_pbr;
  bool centred = false;  ///< store keys without their head's mean (format v3)
  /// Clip ratios that go with the rotations; served, and trained against.
  double k_clip = 0.96, v_clip = 0.92;
  TrainingOptions training;  ///< of an orthogonal factor on top
};

/// Options under one name.
struct Preset {
  const char* name;
  FitOptions options;
  const char* summary;
};

/// oscar, reference, ktk-vtv, layer-offset, head-offset, stretch, uresidual, hadamard, identity.
const std::vector<Preset>& presets();

/// Sets what a word names: all options of a preset, or the objectives of "KEY+VALUE"
/// ("ktk+sst-surrogate"), the rest as it is. Throws InputError listing what there is for another
/// word.
void apply_objective(FitOptions& options, std::string_view word);

Granularity parse_granularity(
    std::string_view word);  ///< "layer" or "head"; throws InputError otherwise
const char* name_of(Granularity granularity);

/// Fits the pair of rotations. The same statistics and options give the same bits on one device.
/// Every matrix is orthonormal (or inverse to its read side) to 1e-6 in fp32, which is checked. The
/// calibration block is filled, its generation_id derived from what was measured and what came out.
/// Throws InputError if the statistics hold no layers or no tokens, or lack what an objective
/// needs.
RotationPair fit(const Statistics& statistics, const FitOptions& options, const Device& device);

/// Where a pair made from these statistics comes from; its generation_id is a hash of what was
/// measured and of both sides' matrices.
Calibration calibration_of(const Statistics& statistics, const RotationPair& pair);

}  // namespace oscar
