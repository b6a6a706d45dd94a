#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/core/device.h"
#include "oscar/rotation/composition.h"
#include "oscar/rotation/rotation_set.h"
#include "oscar/statistics/statistics.h"

namespace oscar {

/// One matrix to be fitted: some KV heads of a layer, which will share it (all of them, or a single
/// one).
struct FitUnit {
  int layer = 0;  ///< global decoder id, for messages
  const LayerStatistics* statistics = nullptr;
  std::vector<int> heads;
};

/// What applies to every unit of a fit.
struct FitContext {
  Composition composition = Composition::r_h_pbr;
  Device device;         ///< where eigensystems are computed
  bool centred = false;  ///< keys are stored without their head's mean
};

struct FittedMatrix {
  Matrix rotation;     ///< [D,D]; a row x becomes x · rotation
  Vector eigenvalues;  ///< [D] ascending, of the normalised second moment that was diagonalised
  Matrix read = {};    ///< [D,D] with rotation · readᵀ = I; empty if rotation is orthonormal

  const Matrix& read_side() const { return read.size() == 0 ? rotation : read; }
};

/// One way to choose a rotation for the keys or for the values from a layer's statistics. Every
/// objective is one file in lib/rotation/objectives, with a line in its list.
class Objective {
 public:
  virtual ~Objective() = default;
  Objective() = default;
  Objective(const Objective&) = delete;
  Objective& operator=(const Objective&) = delete;

  /// The word on the command line: "qqt", "sst-surrogate".
  virtual std::string_view name() const = 0;
  /// One line of help: what is diagonalised, and where it comes from.
  virtual std::string_view summary() const = 0;
  /// The `objective` of the rotation file, as the published files spell it: "qqt_r_h_pbr",
  /// "hadamard".
  virtual std::string file_name(Composition composition) const = 0;
  /// Whether every matrix is its own read side: what formats v1 and v2 hold.
  virtual bool is_orthogonal() const { return true; }
  /// Whether it needs the sampled rows of the statistics beside the sums.
  virtual bool needs_samples() const { return false; }
  /// Fits all units at once, so that a GPU sees large batches. The result has an entry for each
  /// unit and depends on nothing else than the arguments. Throws InputError naming the layer if its
  /// statistics lack what the objective needs.
  virtual std::vector<FittedMatrix> fit(std::span<const FitUnit> units,
                                        const FitContext& context) const = 0;
};

/// The objectives that can rotate this side, in the order in which help lists them.
const std::vector<const Objective*>& objectives(Side side);

/// The objective of this name. Throws InputError listing the names for another word.
const Objective& find_objective(Side side, std::string_view name);

}  // namespace oscar
