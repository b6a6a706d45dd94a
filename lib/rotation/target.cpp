#include "oscar/rotation/target.h"

#include "oscar/core/error.h"

namespace oscar {

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {
      {"sglang-v1", false, false, "layer-offset", "SGLang, one rotation a layer"},
      {"sglang-v2", true, false, "head-offset", "SGLang, one rotation a KV head"},
      {"sglang-v3", true, true, "stretch", "SGLang with centred keys and separate read sides"},
      {"llama.cpp", false, false, "layer-offset", "llama.cpp forks, one rotation a layer"},
      {"vllm", false, false, "layer-offset", "vLLM forks, one rotation a layer"},
      {"onnxruntime", true, false, "head-offset", "ONNX Runtime, one rotation a KV head"},
      {"any", true, true, "stretch", "no restriction"},
  };
  return all;
}

const Target& find_target(std::string_view name) {
  std::vector<const char*> names;
  for (const Target& target : targets()) {
    if (name == target.name) return target;
    names.push_back(target.name);
  }
  fail_input("\"{}\" is not a target; there are {}", name, fmt::join(names, ", "));
}

namespace {

bool is_general(const FitOptions& options) {
  return options.centred || !find_objective(Side::key, options.key).is_orthogonal() ||
         !find_objective(Side::value, options.value).is_orthogonal();
}

}  // namespace

bool can_load(const Target& target, const FitOptions& options) {
  return (target.general || !is_general(options)) &&
         (target.per_head || options.granularity == Granularity::layer);
}

void check_target(const FitOptions& options, const Target& target) {
  if (is_general(options) && !target.general) {
    fail_input(
        "{} loads orthogonal matrices alone, but {} keys with the objective {} need format v3; use "
        "--objective {}, or another --target",
        target.name, options.centred ? "centred" : "uncentred", options.key, target.preset);
  }
  if (options.granularity == Granularity::head && !target.per_head) {
    fail_input(
        "{} loads one matrix a layer, but one a KV head was asked for; use --granularity layer, "
        "--objective {}, or another --target",
        target.name, target.preset);
  }
}

}  // namespace oscar
