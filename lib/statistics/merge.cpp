#include <algorithm>
#include <set>

#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "oscar/core/version.h"
#include "oscar/statistics/statistics.h"

namespace oscar {

namespace {

/// The runs inside a file: itself, or those it was merged from.
std::vector<std::string> runs_of(const Statistics& part) {
  return part.merged_from.empty() ? std::vector{part.dataset_sha256} : part.merged_from;
}

void require_equal(const std::string& what, const std::string& a, const std::string& b) {
  if (a != b) {
    fail_input("statistics of different {} cannot be merged: \"{}\" and \"{}\"", what, a, b);
  }
}

void add(Statistics& total, const Statistics& part) {
  require_equal("models (fingerprints)", total.model_fingerprint, part.model_fingerprint);
  require_equal("tokenizers (fingerprints)", total.tokenizer_fingerprint,
                part.tokenizer_fingerprint);
  require_equal("precision", total.precision, part.precision);
  require_equal("checkpoint patches (sha256)", total.patch_sha256, part.patch_sha256);
  if (total.layers.size() != part.layers.size()) {
    fail_input("statistics of {} layers and of {} layers cannot be merged", total.layers.size(),
               part.layers.size());
  }
  for (auto& [id, layer] : total.layers) {
    const auto found = part.layers.find(id);
    if (found == part.layers.end()) {
      fail_input("layer {} is in one statistics file and not in another; they cannot be merged",
                 id);
    }
    try {
      layer.merge(found->second);
    } catch (const InputError& error) {
      fail_input("layer {}: {}", id, error.what());
    }
  }
  total.tokens += part.tokens;
  total.sequences += part.sequences;
  total.sequence_length = std::max(total.sequence_length, part.sequence_length);
}

}  // namespace

Statistics merge(std::vector<Statistics> parts) {
  if (parts.empty()) fail_input("there are no statistics to merge");
  std::sort(parts.begin(), parts.end(), [](const Statistics& a, const Statistics& b) {
    return a.dataset_sha256 < b.dataset_sha256;
  });
  std::set<std::string> runs;
  for (const Statistics& part : parts) {
    for (const std::string& run : runs_of(part)) {
      if (!runs.insert(run).second) {
        fail_input(
            "the same data (dataset hash {}) comes twice; adding it again would count it double",
            run);
      }
    }
  }
  if (parts.size() == 1) return std::move(parts.front());
  Statistics total = std::move(parts.front());
  for (std::size_t i = 1; i < parts.size(); ++i) add(total, parts[i]);
  total.merged_from.assign(runs.begin(), runs.end());
  std::string all;
  for (const std::string& run : total.merged_from) all += run + "\n";
  total.dataset_sha256 = sha256_hex(all);
  total.tool_version = kVersion;
  total.surrogate_additive = false;
  return total;
}

}  // namespace oscar
