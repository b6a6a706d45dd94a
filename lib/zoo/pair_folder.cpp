#include "oscar/zoo/pair_folder.h"

#include <algorithm>

#include "oscar/core/error.h"
#include "oscar/zoo/rotation_file.h"
#include "zoo/manifest.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

/// The folder's only file whose name begins like this and ends in .pt.
fs::path only_file(const fs::path& folder, const std::string& prefix) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(".pt")) found.push_back(name);
  }
  if (found.size() != 1) {
    std::sort(found.begin(), found.end());
    fail_input("{}: holds {} files named {}*.pt{}{}; engines expect exactly one", folder.string(),
               found.size(), prefix, found.empty() ? "" : ": ", fmt::join(found, ", "));
  }
  return folder / found[0];
}

void check_fits(const RotationPair& pair, const fs::path& folder) {
  const auto ids = [](const RotationSet& set) {
    std::vector<int> result;
    for (const auto& [id, layer] : set.layers) result.push_back(id);
    return result;
  };
  if (ids(pair.key) != ids(pair.value)) {
    fail_input(
        "{}: the key file has {} layers, the value file {}, or other layers; they are not a pair",
        folder.string(), pair.key.layers.size(), pair.value.layers.size());
  }
  const auto& a = pair.key.calibration;
  const auto& b = pair.value.calibration;
  if (a && b && a->generation_id != b->generation_id) {
    fail_input("{}: the key file is of run {}, the value file of run {}; they are not a pair",
               folder.string(), a->generation_id, b->generation_id);
  }
}

}  // namespace

void write_pair(const fs::path& folder, const RotationPair& pair, const PairInfo& info,
                const std::vector<std::string>& also_listed) {
  // A pair under other names would leave the folder with two: engines could then load either.
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if ((name.starts_with("k_rotation") || name.starts_with("v_rotation")) &&
        name.ends_with(".pt")) {
      fs::remove(entry.path());
    }
  }
  std::vector<std::string> files = {rotation_file_name(pair.key), rotation_file_name(pair.value)};
  save_rotations(folder / files[0], pair.key);
  save_rotations(folder / files[1], pair.value);
  files.insert(files.end(), also_listed.begin(), also_listed.end());
  write_json(folder / "manifest.json", manifest_json(folder, pair, info, files));
}

PairFolder load_pair(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    fail_input("{}: is not a folder; expected one that holds a rotation pair", folder.string());
  }
  PairFolder result;
  result.key_file = only_file(folder, "k_rotation");
  result.value_file = only_file(folder, "v_rotation");
  const fs::path manifest_path = folder / "manifest.json";
  if (fs::exists(manifest_path)) {
    const Json manifest = read_json(manifest_path);
    const auto problems = check_manifest_files(manifest, folder);
    if (!problems.empty()) {
      fail_input("{}: {}; make the pair again, or remove manifest.json if the change was meant",
                 folder.string(), fmt::join(problems, ", "));
    }
    result.info = read_manifest(manifest, manifest_path.string());
  }
  result.pair.key = load_rotations(result.key_file, Side::key);
  result.pair.value = load_rotations(result.value_file, Side::value);
  check_fits(result.pair, folder);
  if (fs::exists(folder / kPatchFileName)) result.patch_file = folder / kPatchFileName;
  return result;
}

}  // namespace oscar
