#pragma once

#include <filesystem>
#include <optional>

#include "oscar/core/json.h"
#include "oscar/statistics/statistics.h"

namespace oscar {

/// The folder in which a calibration keeps what it has finished, so that a killed run can go on:
/// run.json (what was asked for), layer-<id>.h5 for every finished layer, and the hidden states
/// before some layer. Every file appears whole or not at all.
class UnfinishedRun {
 public:
  /// Opens `folder`, or creates it (and its parents) if it is not there. `identity` is everything
  /// that the result's bytes depend on; throws InputError naming the field if the run in the folder
  /// has another one.
  UnfinishedRun(std::filesystem::path folder, const OrderedJson& identity);

  bool has_layer(int layer) const;
  void save_layer(int layer, const LayerStatistics& statistics) const;
  LayerStatistics load_layer(int layer) const;

  /// Where the hidden states before `layer` belong.
  std::filesystem::path state_path(int layer) const;
  /// The latest layer whose hidden states are kept.
  std::optional<int> latest_state() const;
  /// Removes the hidden states of other layers than this one.
  void keep_only_state(int layer) const;

  /// Removes the folder: the run is finished, or its input was wrong.
  void remove() const;
  /// True if the constructor made the folder.
  bool is_new() const { return new_; }

 private:
  std::filesystem::path layer_path(int layer) const;
  std::filesystem::path folder_;
  bool new_ = false;
};

}  // namespace oscar
