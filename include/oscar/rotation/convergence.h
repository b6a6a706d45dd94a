#pragma once

#include <optional>
#include <string>
#include <vector>

#include "oscar/core/json.h"
#include "oscar/rotation/fit.h"

namespace oscar {

/// How much one side of one layer depends on which half of the text it was fitted on.
struct LayerConvergence {
  int layer = 0;
  Side side = Side::key;
  /// What the INT2 errors of one half's rows cost more under the rotation fitted on the other half
  /// than under the one fitted on all text, relative; both ways, all heads.
  double excess = 0;
  double spread = 0;  ///< of the excess: standard deviation over bootstrap samples of the rows
  /// Root mean square of the principal angles between the leading quarters of the two halves'
  /// eigenvectors; absent where the rotation holds none to compare.
  std::optional<double> angle_degrees;
};

struct Convergence {
  enum class Verdict {
    enough,
    more,     ///< more tokens would help
    unknown,  ///< the statistics keep no halves that could be fitted
  };
  Verdict verdict = Verdict::unknown;
  std::string message;                   ///< one sentence for people
  double key_excess = 0;                 ///< mean over layers
  double value_excess = 0;               ///< mean over layers
  std::vector<LayerConvergence> layers;  ///< keys of all layers, then values
};
const char* name_of(Convergence::Verdict verdict);

/// Above this excess, of keys or of values, more tokens help. A fit's excess cost falls with one
/// over the number of tokens, and a half has half of them and is scored on text that it has not
/// seen: the fit on all text is within about a third of this of what it could reach.
inline constexpr double kConverged = 0.06;

/// Fits each half of the data as `options` say, without training, and scores each on the other's
/// rows: those sampled with the statistics, or where there are none, Gaussian ones of the half's
/// moments. The same input gives the same numbers on one device.
Convergence check_convergence(const Statistics& statistics, FitOptions options,
                              const Device& device);

/// The verdict, the excesses and every layer.
OrderedJson to_json(const Convergence& convergence);

}  // namespace oscar
