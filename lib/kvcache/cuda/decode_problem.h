#pragma once

#include <cuda_runtime_api.h>

#include "oscar/core/float16.h"
#include "oscar/kvcache/decode.h"

namespace oscar::cuda {

/// How the context is shared out, and where the parts' results go.
struct DecodeSplits {
  int coded = 0;             ///< parts of the INT2 tier
  int exact = 0;             ///< parts of the sink and recent tiers together
  int coded_tokens = 0;      ///< of one part, a multiple of 32
  int exact_tokens = 0;      ///< of one part, a multiple of 16
  bool separate = false;     ///< exact parts have blocks of their own
  float* maximum = nullptr;  ///< [requests, query heads, parts], in powers of two
  float* sum = nullptr;      ///< [requests, query heads, parts]
  float* output = nullptr;   ///< [requests, query heads, parts, Dv]

  OSCAR_HOST_DEVICE int parts() const { return coded + exact; }
};

/// Tensor cores, for the layouts that supports_split_decode accepts.
void split_decode(const MixedCacheView& cache, const DecodeAttention& problem,
                  const DecodeSplits& splits, cudaStream_t stream);
bool supports_split_decode(const MixedCacheView& cache, const DecodeAttention& problem);

/// Adds the parts up.
void combine_splits(const MixedCacheView& cache, const DecodeAttention& problem,
                    const DecodeSplits& splits, cudaStream_t stream);

/// Any shape and layout, one block a query head.
void decode_any(const MixedCacheView& cache, const DecodeAttention& problem, cudaStream_t stream);

}  // namespace oscar::cuda
