#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "oscar/linalg/matrix.h"

namespace oscar {

/// Second moments of one decoder layer's attention, as sums over tokens in float64 (contract,
/// section 5). One entry of each vector per KV head; query and output sums run over the g grouped
/// query heads too.
struct LayerStatistics {
  int kv_heads = 0;
  int q_heads = 0;
  int head_dim = 0;   ///< D of queries and keys
  int value_dim = 0;  ///< Dv of values and attention outputs
  std::int64_t tokens = 0;

  std::vector<Matrix> query_outer;   ///< [H_kv][D,D]   Σ qᵀq, post-RoPE
  std::vector<Vector> query_sum;     ///< [H_kv][D]
  std::vector<Matrix> key_outer;     ///< [H_kv][D,D]   Σ kᵀk, post-RoPE
  std::vector<Vector> key_sum;       ///< [H_kv][D]
  std::vector<Matrix> value_outer;   ///< [H_kv][Dv,Dv] Σ vᵀv
  std::vector<Vector> value_sum;     ///< [H_kv][Dv]
  std::vector<Matrix> output_outer;  ///< [H_kv][Dv,Dv] Σ oᵀo, o before W_o: the exact C_S
  std::vector<Matrix>
      weighted_value_outer;  ///< [H_kv][Dv,Dv] Σ w_t vᵀv, Σ w = tokens: the surrogate C_S

  /// Rows kept beside the sums, for objectives that no second moment can serve (quantisation
  /// residuals, training): some tokens' keys and values as float32, the same tokens in both. Empty
  /// where none were kept.
  std::vector<MatrixF> key_samples;    ///< [H_kv][n,D]
  std::vector<MatrixF> value_samples;  ///< [H_kv][n,Dv]
  /// The attention that each sampled token receives from the queries that read it at two bits (from
  /// `recent` tokens later on, the sink left out), summed over the grouped query heads: Σ p and Σ
  /// p², p the softmax weight. Empty in files of older programs.
  std::vector<MatrixF> sample_attention;  ///< [H_kv][n,2]

  /// What an error e of a value costs behind the output projection: e · metric · eᵀ, the mean over
  /// the grouped query heads of W_o,hᵀ W_o,h, from the weights alone. Empty in files of older
  /// programs.
  std::vector<Matrix> output_metric;  ///< [H_kv][Dv,Dv]

  /// The same over about half of the sequences, to see how much the fit depends on the data; its
  /// samples are this layer's first ones. One entry, or none in files of older programs and where
  /// there was one sequence.
  std::vector<LayerStatistics> half;

  /// Query heads that share a KV head.
  int group() const { return q_heads / kv_heads; }
  /// Rows behind query_outer and output_outer: tokens × group.
  std::int64_t query_rows() const { return tokens * group(); }

  /// All-zero sums of these shapes.
  static LayerStatistics zeros(int kv_heads, int q_heads, int head_dim, int value_dim);
  /// Throws InputError saying what is wrong if shapes do not fit together, a sum is not finite, an
  /// outer product is not symmetric or has a negative diagonal. `where` begins the message.
  void check(const std::string& where) const;
  /// n: the rows kept of each head.
  std::int64_t samples() const { return key_samples.empty() ? 0 : key_samples.front().rows(); }

  /// Adds another run's sums and samples; the output metric is the model's, and stays. Keeps a half
  /// where both have one.
  /// Throws InputError if the shapes differ.
  void merge(const LayerStatistics& other);
};

/// What one calibration run measured, and on what.
struct Statistics {
  std::string model;                  ///< as the user named it
  std::string model_fingerprint;      ///< Checkpoint::fingerprint()
  std::string tokenizer_fingerprint;  ///< Tokenizer::fingerprint()
  std::string dataset_sha256;         ///< TokenBatch::sha256()
  std::string tool_version;
  std::string precision;     ///< of the forward pass: "fp32" or "bf16"
  std::string patch_sha256;  ///< of the CheckpointPatch that the weights had; empty: none
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  std::int64_t sequence_length = 0;
  std::vector<std::string>
      merged_from;                 ///< dataset hashes of merged runs, ascending; empty: one run
  bool surrogate_additive = true;  ///< false after a merge: each file's own weights were summed
  std::map<int, LayerStatistics> layers;  ///< by global decoder id; only full-attention layers
};

/// Sum of several runs of one model, to the same bytes whatever the order of the arguments: they
/// are sorted by dataset hash before adding. The merged dataset hash is that of all parts' hashes,
/// sorted. Throws InputError if there are none, the models, tokenizers, precisions, layers or
/// shapes differ, or the same data comes twice, also inside an earlier merge.
Statistics merge(std::vector<Statistics> parts);

/// What was measured on the half of the sequences that the layers keep, and on the others, each as
/// a run of its own. Nothing where a layer keeps none.
std::optional<std::array<Statistics, 2>> halves(const Statistics& statistics);

/// Writes statistics.h5 atomically, by the HDF5 C API; the same statistics give the same bytes.
void save_statistics(const std::filesystem::path& path, const Statistics& statistics);

/// Reads statistics.h5. Throws InputError naming the file, the group and what was expected if it is
/// not a statistics file, of a newer format version, misshapen, asymmetric or holds non-finite
/// numbers.
Statistics load_statistics(const std::filesystem::path& path);

/// Writes one finished layer as a whole file (format "oscar-statistics-layer", the same group as in
/// statistics.h5), atomically: what a resumed run goes on from.
void save_layer(const std::filesystem::path& path, int layer_id, const LayerStatistics& layer);

/// Reads a file of save_layer(). Throws InputError as load_statistics() does, also if it holds
/// another layer.
LayerStatistics load_layer(const std::filesystem::path& path, int layer_id);

}  // namespace oscar
