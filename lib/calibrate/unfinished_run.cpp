#include "calibrate/unfinished_run.h"

#include <charconv>

#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {
constexpr std::string_view kStatePrefix = "hidden-before-layer-";
constexpr std::string_view kStateSuffix = ".state";

/// The layer of a state file's name, or nothing for other names.
std::optional<int> state_layer(const std::string& name) {
  if (!name.starts_with(kStatePrefix) || !name.ends_with(kStateSuffix)) return std::nullopt;
  int layer = 0;
  const char* begin = name.data() + kStatePrefix.size();
  const char* end = name.data() + name.size() - kStateSuffix.size();
  const auto [stop, error] = std::from_chars(begin, end, layer);
  if (error != std::errc() || stop != end) return std::nullopt;
  return layer;
}

void check_same(const Json& found, const Json& wanted, const std::string& source) {
  for (const auto& [key, value] : wanted.items()) {
    const Json& old = found.contains(key) ? found.at(key) : Json();
    if (old != value) {
      fail_input(
          "{}: the unfinished run was started with {} = {}, now it is {}; repeat the settings it "
          "was "
          "started with, or start over with --force",
          source, key, old.dump(), value.dump());
    }
  }
}
}  // namespace

UnfinishedRun::UnfinishedRun(fs::path folder, const OrderedJson& identity)
    : folder_(std::move(folder)) {
  const fs::path settings = folder_ / "run.json";
  if (fs::exists(settings)) {
    check_same(read_json(settings), Json(identity), settings.string());
    remove_partial_files(folder_);
    remove_partial_files(folder_.parent_path());
    return;
  }
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail_input("{}: cannot be created ({})", folder_.string(), error.message());
  new_ = true;
  write_json(settings, identity);
}

fs::path UnfinishedRun::layer_path(int layer) const {
  return folder_ / fmt::format("layer-{}.h5", layer);
}

fs::path UnfinishedRun::state_path(int layer) const {
  return folder_ / fmt::format("{}{}{}", kStatePrefix, layer, kStateSuffix);
}

bool UnfinishedRun::has_layer(int layer) const {
  return fs::exists(layer_path(layer));
}

void UnfinishedRun::save_layer(int layer, const LayerStatistics& statistics) const {
  oscar::save_layer(layer_path(layer), layer, statistics);
}

LayerStatistics UnfinishedRun::load_layer(int layer) const {
  return oscar::load_layer(layer_path(layer), layer);
}

std::optional<int> UnfinishedRun::latest_state() const {
  std::optional<int> latest;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const auto layer = state_layer(entry.path().filename().string());
    if (layer && (!latest || *layer > *latest)) latest = layer;
  }
  return latest;
}

void UnfinishedRun::keep_only_state(int layer) const {
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const auto other = state_layer(entry.path().filename().string());
    if (other && *other != layer) fs::remove(entry.path());
  }
}

void UnfinishedRun::remove() const {
  // run.json goes last: until then, a run that is killed here can be resumed, and ends here again.
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().filename() != "run.json") fs::remove(entry.path(), ignored);
  }
  fs::remove_all(folder_, ignored);
}

}  // namespace oscar
