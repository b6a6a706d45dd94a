#include "zoo/manifest.h"

#include "oscar/core/hash.h"
#include "oscar/core/version.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSchema = "oscar-manifest";
constexpr int kSchemaVersion = 1;

OrderedJson settings_json(const ServedSettings& s) {
  return {{"sink", s.sink},
          {"recent", s.recent},
          {"group", s.group},
          {"k_clip", s.k_clip},
          {"v_clip", s.v_clip},
          {"clip_rule", s.clip_rule},
          {"scale_type", s.scale_type}};
}

ServedSettings read_settings(const Json& json, const std::string& source) {
  ServedSettings s;
  s.sink = require<int>(json, "sink", source);
  s.recent = require<int>(json, "recent", source);
  s.group = require<int>(json, "group", source);
  s.k_clip = require<double>(json, "k_clip", source);
  s.v_clip = require<double>(json, "v_clip", source);
  s.clip_rule = require<std::string>(json, "clip_rule", source);
  s.scale_type = require<std::string>(json, "scale_type", source);
  return s;
}

}  // namespace

OrderedJson manifest_json(const fs::path& folder, const RotationPair& pair, const PairInfo& info,
                          const std::vector<std::string>& files) {
  OrderedJson listed = OrderedJson::array();
  for (const std::string& name : files) {
    listed.push_back({{"name", name},
                      {"bytes", fs::file_size(folder / name)},
                      {"sha256", sha256_file(folder / name)}});
  }
  const Calibration& run = pair.key.calibration.value_or(Calibration{});
  return {{"schema", kSchema},
          {"schema_version", kSchemaVersion},
          {"tool_version", kVersion},
          {"generation_id", run.generation_id},
          {"model",
           {{"path", info.model},
            {"fingerprint", info.model_fingerprint},
            {"tokenizer_fingerprint", info.tokenizer_fingerprint}}},
          {"calibration",
           {{"dataset_sha256", info.dataset_sha256},
            {"tokens", info.tokens},
            {"sequences", info.sequences},
            {"sequence_length", info.sequence_length},
            {"precision", info.precision}}},
          {"rotation",
           {{"objective", info.objective},
            {"key_objective", pair.key.objective},
            {"value_objective", pair.value.objective},
            {"composition", info.composition},
            {"granularity", pair.key.granularity == Granularity::head ? "head" : "layer"},
            {"layers", pair.key.layers.size()}}},
          {"settings", settings_json(info.settings)},
          {"files", listed},
          {"convergence", info.convergence.value_or(nullptr)},
          {"selection", info.selection.value_or(nullptr)},
          {"validation", info.validation.value_or(nullptr)}};
}

PairInfo read_manifest(const Json& manifest, const std::string& source) {
  if (require<std::string>(manifest, "schema", source) != kSchema) {
    fail_input("{}: is not a manifest of this program (schema \"{}\", expected \"{}\")", source,
               manifest.at("schema").get<std::string>(), kSchema);
  }
  if (const int version = require<int>(manifest, "schema_version", source);
      version > kSchemaVersion) {
    fail_input("{}: schema_version {} is newer than this program ({}); use a newer oscar", source,
               version, kSchemaVersion);
  }
  PairInfo info;
  const Json model = require<Json>(manifest, "model", source);
  info.model = require<std::string>(model, "path", source);
  info.model_fingerprint = require<std::string>(model, "fingerprint", source);
  info.tokenizer_fingerprint = require<std::string>(model, "tokenizer_fingerprint", source);
  const Json calibration = require<Json>(manifest, "calibration", source);
  info.dataset_sha256 = require<std::string>(calibration, "dataset_sha256", source);
  info.tokens = require<std::int64_t>(calibration, "tokens", source);
  info.sequences = require<std::int64_t>(calibration, "sequences", source);
  info.sequence_length = require<std::int64_t>(calibration, "sequence_length", source);
  info.precision = require<std::string>(calibration, "precision", source);
  const Json rotation = require<Json>(manifest, "rotation", source);
  info.objective = require<std::string>(rotation, "objective", source);
  info.composition = require<std::string>(rotation, "composition", source);
  info.settings = read_settings(require<Json>(manifest, "settings", source), source);
  const auto copy = [&](const char* name) -> std::optional<OrderedJson> {
    const auto found = find<Json>(manifest, name, source);
    return found ? std::optional(OrderedJson::parse(found->dump())) : std::nullopt;
  };
  info.convergence = copy("convergence");
  info.selection = copy("selection");
  info.validation = copy("validation");
  return info;
}

std::vector<std::string> check_manifest_files(const Json& manifest, const fs::path& folder) {
  const std::string source = (folder / "manifest.json").string();
  std::vector<std::string> problems;
  for (const Json& file : require<Json>(manifest, "files", source)) {
    const std::string name = require<std::string>(file, "name", source);
    if (fs::path(name).filename() != fs::path(name)) {
      fail_input("{}: lists \"{}\", which is not a plain file name", source, name);
    }
    const fs::path path = folder / name;
    if (!fs::is_regular_file(path)) {
      problems.push_back(fmt::format("{} is missing", name));
    } else if (fs::file_size(path) != require<std::uint64_t>(file, "bytes", source) ||
               sha256_file(path) != require<std::string>(file, "sha256", source)) {
      problems.push_back(fmt::format("{} differs from what the manifest recorded", name));
    }
  }
  return problems;
}

}  // namespace oscar
