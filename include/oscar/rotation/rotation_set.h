#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "oscar/linalg/matrix.h"

namespace oscar {

enum class Side { key, value };
enum class Granularity { layer, head };

/// The rotation of one decoder layer: a row x becomes x · R.
struct LayerRotation {
  std::vector<MatrixF> rotation;     ///< one [D,D] for the layer, or one per KV head
  std::vector<VectorF> eigenvalues;  ///< as many, ascending; empty where the source had none
};

/// Where a pair of rotation files came from; the two files of a pair hold the same block.
struct Calibration {
  std::string
      generation_id;  ///< shared by the pair; derived from what was measured, not from the clock
  std::string model_path;
  std::string model_revision;
  std::string model_fingerprint;
  std::string prompt_sha256;
  std::int64_t tokens = 0;
  std::int64_t global_q_heads = 0;
  std::int64_t global_kv_heads = 0;
  bool post_rope = true;
  std::string accumulator_dtype = "float64";
};

/// All rotations of one side (keys or values) of one model: what a rotation file holds.
struct RotationSet {
  Side side = Side::key;
  Granularity granularity = Granularity::layer;
  std::string objective;  ///< "qqt_r_h_pbr", "sst_r_h_pbr", ...
  std::map<int, LayerRotation>
      layers;  ///< by global decoder id; holes are layers without full attention
  std::optional<Calibration> calibration;

  /// The matrix that KV head `head` of layer `layer` uses. Throws InputError if the layer is
  /// missing.
  const MatrixF& matrix(int layer, int head) const;
};

struct RotationPair {
  RotationSet key;
  RotationSet value;
};

}  // namespace oscar
