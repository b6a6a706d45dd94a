#pragma once

#include <map>

#include "oscar/rotation/rotation_set.h"

namespace oscar {

/// One set whose layers come from several: `sources` names the set of each layer. Where they
/// differ, every layer takes the most general form: one matrix a KV head, a read side, a mean (of
/// zeros). All must be of one side, and of a model with `kv_heads` KV heads. The calibration block
/// is left empty. Throws InputError if a source lacks its layer.
RotationSet mix(const std::map<int, const RotationSet*>& sources, int kv_heads);

}  // namespace oscar
