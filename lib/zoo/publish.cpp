#include "oscar/zoo/publish.h"

#include <unistd.h>

#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "oscar/zoo/pair_folder.h"
#include "oscar/zoo/verify.h"
#include "zoo/model_card.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

/// The last part of the model's path, without a GGUF file's ending.
std::string name_from(const std::string& model) {
  fs::path path = fs::path(model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = path.filename().string();
  return name.ends_with(".gguf") ? name.substr(0, name.size() - 5) : name;
}

/// The summary of one candidate in a report of oscar-validate: the only one that is not a baseline.
OrderedJson summary_of(const fs::path& path) {
  const Json report = read_json(path);
  const std::string source = path.string();
  if (require<std::string>(report, "schema", source) != "oscar-validation") {
    fail_input("{}: is not a report of oscar-validate", source);
  }
  OrderedJson summary;
  const Json candidates = require<Json>(report, "candidates", source);
  for (const auto& [name, candidate] : candidates.items()) {
    if (candidate.value("baseline", false)) continue;
    if (!summary.is_null()) {
      fail_input("{}: scores several rotations; make a report of this pair alone", source);
    }
    summary = {{"candidate", name}};
    for (const char* key : {"ppl", "kld_mean", "kld_standard_error", "kld_percentiles",
                            "top1_agreement", "settings"}) {
      summary[key] = OrderedJson::parse(require<Json>(candidate, key, source).dump());
    }
  }
  if (summary.is_null()) fail_input("{}: scores baselines alone, no rotations", source);
  for (const char* key :
       {"ppl_reference", "dataset_sha256", "tokens", "sequence_length", "model_fingerprint"}) {
    summary[key] = OrderedJson::parse(require<Json>(report, key, source).dump());
  }
  return summary;
}

}  // namespace

Published publish(const PublishOptions& options) {
  PairFolder pair = load_pair(options.rotations);
  if (!pair.info) {
    fail_input(
        "{}: has no manifest.json, so where the pair comes from is not known; make it with "
        "oscar-calibrate",
        options.rotations.string());
  }
  const Verification verification = verify(options.rotations);
  if (!verification.passed()) {
    fail_input("{}: must not be published\n{}", options.rotations.string(), to_text(verification));
  }
  if (options.report) {
    pair.info->validation = summary_of(*options.report);
    const std::string scored = pair.info->validation->value("model_fingerprint", "");
    if (scored != pair.info->model_fingerprint) {
      fail_input("{}: is about another model (fingerprint {}, the pair's {})",
                 options.report->string(), scored, pair.info->model_fingerprint);
    }
  }
  const std::string name =
      options.model_name.empty() ? name_from(pair.info->model) : options.model_name;
  if (name.empty() || fs::path(name).filename() != fs::path(name) || name.starts_with(".")) {
    fail_input("--model-name \"{}\" must be a plain folder name", name);
  }
  const int dim = static_cast<int>(pair.pair.key.layers.begin()->second.rotation[0].rows());
  const fs::path folder =
      options.zoo / name /
      fmt::format("seq{}_prompt{}_group{}", pair.info->tokens, pair.info->sequences,
                  std::min(pair.info->settings.group, dim));
  refuse_existing(folder, options.force);

  // Everything is made beside the destination and appears by one rename.
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  if (error)
    fail_input("{}: cannot be created ({})", folder.parent_path().string(), error.message());
  const fs::path temporary =
      folder.parent_path() / fmt::format(".{}.{}.partial", folder.filename().string(), ::getpid());
  try {
    fs::create_directory(temporary);
    write_file(temporary / "README.md", model_card(name, pair));
    std::vector<std::string> listed = {"README.md"};
    if (pair.patch_file) {
      listed.push_back(pair.patch_file->filename().string());
      fs::copy_file(*pair.patch_file, temporary / listed.back());
    }
    write_pair(temporary, pair.pair, *pair.info, listed);
    fs::remove_all(folder);
    fs::rename(temporary, folder);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  Published result{folder,
                   {folder / pair.key_file.filename(), folder / pair.value_file.filename()}};
  if (pair.patch_file) result.files.push_back(folder / pair.patch_file->filename());
  for (const char* file : {"manifest.json", "README.md"}) result.files.push_back(folder / file);
  return result;
}

}  // namespace oscar
