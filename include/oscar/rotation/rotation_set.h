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

/// The transform of one decoder layer: a row x is stored as (x - mean) · R and read with Q, where
/// R · Qᵀ = I. For keys the query becomes q · Q; for values the output o becomes o · Qᵀ.
struct LayerRotation {
  std::vector<MatrixF> rotation;     ///< R: one [D,D] for the layer, or one per KV head
  std::vector<VectorF> eigenvalues;  ///< as many, ascending; empty where the source had none
  std::vector<MatrixF> read;         ///< Q: as many; empty where R is orthogonal, so that Q is R
  /// Keys only: one [D] for the layer, or one per KV head; empty where rows are stored as they are.
  std::vector<VectorF> mean;

  const std::vector<MatrixF>& read_side() const { return read.empty() ? rotation : read; }
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

  bool is_centred() const;     ///< some layer subtracts a mean
  bool is_orthogonal() const;  ///< no layer has a read side of its own
  /// Whether a file of one orthogonal matrix a layer or head cannot hold this: format v3 then.
  bool is_general() const { return is_centred() || !is_orthogonal(); }

  /// The matrix that KV head `head` of layer `layer` uses. Throws InputError if the layer is
  /// missing.
  const MatrixF& matrix(int layer, int head) const;
};

struct RotationPair {
  RotationSet key;
  RotationSet value;
};

}  // namespace oscar
