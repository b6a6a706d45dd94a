#include "oscar/calibrate/summary.h"

#include <cmath>

#include "oscar/core/system.h"
#include "oscar/statistics/statistics.h"
#include "oscar/zoo/pair_folder.h"
#include "oscar/zoo/rotation_file.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

/// (Σλ)²/Σλ² of a second moment, from its trace and its Frobenius norm: no eigenvalues are needed.
double participation_ratio(const Matrix& moment) {
  const double norm = moment.squaredNorm();
  return norm > 0 ? moment.trace() * moment.trace() / norm : 0;
}

double mean_participation(const std::vector<Matrix>& moments) {
  double sum = 0;
  for (const Matrix& moment : moments) sum += participation_ratio(moment);
  return moments.empty() ? 0 : sum / static_cast<double>(moments.size());
}

OrderedJson describe_statistics(const fs::path& path) {
  const Statistics statistics = load_statistics(path);
  OrderedJson layers = OrderedJson::array();
  for (const auto& [id, layer] : statistics.layers) {
    layers.push_back({{"layer", id},
                      {"kv_heads", layer.kv_heads},
                      {"q_heads", layer.q_heads},
                      {"head_dim", layer.head_dim},
                      {"value_dim", layer.value_dim},
                      {"tokens", layer.tokens},
                      {"query_participation", mean_participation(layer.query_outer)},
                      {"key_participation", mean_participation(layer.key_outer)},
                      {"value_participation", mean_participation(layer.value_outer)},
                      {"output_participation", mean_participation(layer.output_outer)}});
  }
  return {{"kind", "statistics"},
          {"path", path.string()},
          {"model", statistics.model},
          {"model_fingerprint", statistics.model_fingerprint},
          {"tokenizer_fingerprint", statistics.tokenizer_fingerprint},
          {"dataset_sha256", statistics.dataset_sha256},
          {"tool_version", statistics.tool_version},
          {"precision", statistics.precision},
          {"tokens", statistics.tokens},
          {"sequences", statistics.sequences},
          {"sequence_length", statistics.sequence_length},
          {"layers", layers}};
}

OrderedJson describe_rotations(const RotationSet& set, const fs::path& path) {
  OrderedJson layers = OrderedJson::array();
  for (const auto& [id, layer] : set.layers) {
    layers.push_back({{"layer", id},
                      {"matrices", layer.rotation.size()},
                      {"dimension", layer.rotation[0].rows()},
                      {"has_eigenvalues", !layer.eigenvalues.empty()}});
  }
  OrderedJson json = {{"kind", "rotations"},
                      {"path", path.string()},
                      {"format", format_of(set)},
                      {"objective", set.objective},
                      {"centred", set.is_centred()},
                      {"orthogonal", set.is_orthogonal()},
                      {"granularity", set.granularity == Granularity::head ? "head" : "layer"}};
  if (set.calibration) {
    json["generation_id"] = set.calibration->generation_id;
    json["model_path"] = set.calibration->model_path;
    json["model_fingerprint"] = set.calibration->model_fingerprint;
    json["tokens"] = set.calibration->tokens;
  }
  json["layers"] = layers;
  return json;
}

bool is_hdf5(const fs::path& path) {
  return path.extension() == ".h5" || path.extension() == ".hdf5";
}

std::string number(const OrderedJson& value) {
  if (value.is_number_float()) return fmt::format("{:.4g}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

std::string to_text(const CalibrateResult& result) {
  std::string text =
      fmt::format("\nCalibrated {} layers on {} tokens ({} sequences) in {}, peak memory {}.\n",
                  result.layers, result.tokens, result.sequences, format_seconds(result.seconds),
                  format_bytes(peak_memory_bytes()));
  if (result.choice) text += to_text(*result.choice);
  text += fmt::format("Convergence: {}.\n", result.convergence.message);
  if (result.health.verdict != Health::good) text += "warning: " + result.health.message + "\n";
  if (!result.key_offset_warning.empty()) text += "warning: " + result.key_offset_warning + "\n";
  text += fmt::format("Written to {}:\n", result.output.string());
  for (const fs::path& file :
       {result.key_file, result.value_file, result.statistics_file, result.manifest_file}) {
    if (file.parent_path() == result.output)
      text += fmt::format("  {}\n", file.filename().string());
  }
  return text;
}

OrderedJson to_json(const CalibrateResult& result) {
  return {{"schema", "oscar-calibration"},
          {"schema_version", 1},
          {"output", result.output.string()},
          {"key_file", result.key_file.string()},
          {"value_file", result.value_file.string()},
          {"statistics_file", result.statistics_file.string()},
          {"manifest_file", result.manifest_file.string()},
          {"layers", result.layers},
          {"tokens", result.tokens},
          {"sequences", result.sequences},
          {"key_offset_warning", result.key_offset_warning},
          {"convergence", to_json(result.convergence)},
          {"selection", result.choice ? to_json(*result.choice) : OrderedJson(nullptr)},
          {"seconds", result.seconds},
          {"peak_memory_bytes", peak_memory_bytes()},
          {"health", name_of(result.health.verdict)},
          {"health_message", result.health.message}};
}

std::string to_text(const CalibratePlan& plan, const Device& device) {
  std::string text =
      fmt::format("A run would read {} tokens in {} sequences through {} layers in {} on {}",
                  plan.tokens, plan.sequences, plan.layers, plan.precision, describe(device));
  if (plan.trials > 0) {
    text += fmt::format(", and score up to {} rotations on {} tokens more", plan.trials,
                        plan.held_out_tokens);
  }
  return text +
         fmt::format(".\nMemory: about {}. Disk: {}. Time: about {}.\nNothing was written.\n",
                     format_bytes(plan.memory_bytes), format_bytes(plan.disk_bytes),
                     format_seconds(plan.seconds));
}

OrderedJson to_json(const CalibratePlan& plan) {
  return {{"schema", "oscar-calibration-plan"},
          {"schema_version", 1},
          {"tokens", plan.tokens},
          {"sequences", plan.sequences},
          {"layers", plan.layers},
          {"held_out_tokens", plan.held_out_tokens},
          {"trials", plan.trials},
          {"precision", plan.precision},
          {"memory_bytes", plan.memory_bytes},
          {"disk_bytes", plan.disk_bytes},
          {"seconds", plan.seconds}};
}

OrderedJson inspect(const fs::path& path) {
  if (fs::is_directory(path)) {
    const PairFolder folder = load_pair(path);
    return {{"kind", "pair"},
            {"path", path.string()},
            {"key", describe_rotations(folder.pair.key, folder.key_file)},
            {"value", describe_rotations(folder.pair.value, folder.value_file)}};
  }
  return is_hdf5(path) ? describe_statistics(path)
                       : describe_rotations(load_rotations(path, Side::key), path);
}

std::string inspect_text(const OrderedJson& found) {
  std::string text;
  for (const auto& [key, value] : found.items()) {
    if (value.is_object()) {
      text += fmt::format("{}:\n{}", key, inspect_text(value));
    } else if (!value.is_array()) {
      text += fmt::format("{:<22} {}\n", key, number(value));
    } else {
      for (const auto& row : value) {
        text += " ";
        for (const auto& [name, cell] : row.items())
          text += fmt::format(" {} {}", name, number(cell));
        text += '\n';
      }
    }
  }
  return text;
}

}  // namespace oscar
