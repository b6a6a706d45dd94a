#pragma once

#include "oscar/calibrate/calibrate.h"
#include "oscar/checkpoint/config.h"

namespace oscar {

/// What a calibration of this model on this data would need: arithmetic from the configuration, and
/// one measured matrix product for the time. `samples` rows are kept of each layer; up to `trials`
/// pairs are scored on the held-out text.
CalibratePlan make_plan(const ModelConfig& config, const TokenBatch& tokens,
                        const TokenBatch& held_out, int trials, Precision precision,
                        const Device& device, std::int64_t samples);

}  // namespace oscar
