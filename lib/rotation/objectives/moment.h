#pragma once

#include "oscar/rotation/objective.h"

namespace oscar {

/// An objective whose rotation is the eigenbasis of one second moment, composed with H and P.
/// Adding one is saying which moment.
class MomentObjective : public Objective {
 public:
  std::string file_name(Composition composition) const override;
  std::vector<FittedMatrix> fit(std::span<const FitUnit> units,
                                const FitContext& context) const override;

  /// The unit's moment: the mean of moment() over its heads, symmetric.
  Matrix mean_moment(const FitUnit& unit) const;

 private:
  /// The moment's name in rotation files: "qqt".
  virtual std::string_view file_prefix() const = 0;
  /// The normalised second moment of one KV head.
  virtual Matrix moment(const LayerStatistics& layer, std::size_t head) const = 0;
};

}  // namespace oscar
