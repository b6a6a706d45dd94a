#pragma once

#include <functional>

#include "oscar/rotation/objective.h"

namespace oscar {

/// An objective whose rotation is the eigenbasis of one second moment, composed with H and P.
/// Adding one is saying which moment.
class MomentObjective : public Objective {
 public:
  std::string file_name(Composition composition) const override;
  std::vector<FittedMatrix> fit(std::span<const FitUnit> units,
                                const FitContext& context) const override;

 private:
  /// The moment's name in rotation files: "qqt".
  virtual std::string_view file_prefix() const = 0;
  /// The normalised second moment of one KV head of the unit's layer; `centred` as in FitContext.
  virtual Matrix moment(const FitUnit& unit, std::size_t head, bool centred) const = 0;
};

/// The mean over the unit's heads of moment(head), made symmetric.
Matrix mean_over_heads(const FitUnit& unit, const std::function<Matrix(std::size_t)>& moment);

/// Second moment of one head's keys, around their mean with `centred`: C_K - μᵀμ.
Matrix key_moment(const LayerStatistics& layer, std::size_t head, bool centred);
/// What an error e of one head's row costs, as e · M · eᵀ: for keys C_Q, the logits that it
/// changes; for values the output projection's metric, or the identity where the statistics hold
/// none.
Matrix error_cost(const LayerStatistics& layer, std::size_t head, Side side);

/// Second moment of one head's values: C_V.
Matrix value_moment(const LayerStatistics& layer, std::size_t head);

}  // namespace oscar
