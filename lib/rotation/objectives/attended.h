#pragma once

#include "oscar/rotation/objective.h"

namespace oscar {

/// Weights [n] of mean 1 of one head's sampled rows: the square root of the attention that each
/// receives (Σ p for keys, Σ p² for values; the root was better on held-out text than either no
/// weights or full ones). Throws InputError if the statistics hold none; `layer` has samples.
VectorF attention_weights(const LayerStatistics& layer, std::size_t head, Side side);

/// attention_weights(), or ones where the statistics hold none.
VectorF row_weights(const LayerStatistics& layer, std::size_t head, Side side);

/// Second moment of one head's sampled rows under attention_weights(), around the head's mean with
/// `centred`. Throws InputError naming the layer where statistics hold too few rows or no weights.
Matrix attended_moment(const FitUnit& unit, std::size_t head, Side side, bool centred);

}  // namespace oscar
