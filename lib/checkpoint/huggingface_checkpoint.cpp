#include "checkpoint/huggingface_checkpoint.h"

#include <deque>
#include <map>
#include <set>

#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"
#include "oscar/core/json.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

class HuggingFaceCheckpoint : public Checkpoint {
 public:
  explicit HuggingFaceCheckpoint(fs::path folder) : folder_(std::move(folder)) {
    config_ = read_config(folder_ / "config.json");
    const fs::path index = folder_ / "model.safetensors.index.json",
                   single = folder_ / "model.safetensors";
    if (fs::exists(index)) {
      add_shards(index);
    } else if (fs::exists(single)) {
      add_file(single);
    } else {
      refuse_without_weights();
    }
    if (!tensors_.contains("lm_head.weight")) {
      const auto embedding = tensors_.find("model.embed_tokens.weight");
      if (config_.tied_embeddings && embedding != tensors_.end())
        tensors_["lm_head.weight"] = embedding->second;
    } else if (config_.tied_embeddings) {
      tensors_["lm_head.weight"] =
          tensor("model.embed_tokens.weight");  // transformers ties them after loading
    }
  }

  const ModelConfig& config() const override { return config_; }
  const fs::path& path() const override { return folder_; }
  bool has(const std::string& name) const override { return tensors_.contains(name); }

  const TensorView& tensor(const std::string& name) const override {
    const auto found = tensors_.find(name);
    if (found != tensors_.end()) return found->second;
    if (const auto other = skipped_.find(name); other != skipped_.end()) {
      fail_input("{}: the tensor {} is stored as {}; F32, F16 and BF16 are supported",
                 folder_.string(), name, other->second);
    }
    fail_input("{}: the tensor {} is missing; are all shards there?", folder_.string(), name);
  }

  std::string fingerprint() const override {
    if (fingerprint_.empty()) fingerprint_ = fingerprint_of(*this);
    return fingerprint_;
  }
  void prefetch_layer(int layer) const override {
    for_layer(layer, [](const MappedFile& file, const TensorView& t) { file.will_need(t.data); });
  }
  void release_layer(int layer) const override {
    for_layer(layer, [](const MappedFile& file, const TensorView& t) { file.done_with(t.data); });
  }

 private:
  void add_file(const fs::path& path) {
    const MappedFile& file = files_.emplace_back(path);
    for (auto& [name, tensor] : read_safetensors(file, skipped_)) {
      if (!tensors_.emplace(name, tensor).second) {
        fail_input("{}: the tensor {} is in two shards", folder_.string(), name);
      }
      homes_[name] = &file;
    }
  }

  void add_shards(const fs::path& index) {
    const auto map =
        require<std::map<std::string, std::string>>(read_json(index), "weight_map", index.string());
    std::set<std::string> shards;
    for (const auto& [tensor, shard] : map) shards.insert(shard);
    for (const std::string& shard : shards) {
      if (fs::path(shard).filename() != fs::path(shard) || shard == "..") {
        fail_input("{}: names the shard \"{}\", which is not a file of the folder", index.string(),
                   shard);
      }
      if (!fs::exists(folder_ / shard)) {
        fail_input("{}: the shard {} is missing; incomplete download?", folder_.string(), shard);
      }
      add_file(folder_ / shard);
    }
    for (const auto& [tensor, shard] : map) {
      if (!tensors_.contains(tensor) && !skipped_.contains(tensor)) {
        fail_input("{}: the tensor {} is not in {}, where the index says it is", folder_.string(),
                   tensor, shard);
      }
    }
  }

  [[noreturn]] void refuse_without_weights() const {
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const auto ending = entry.path().extension();
      if (ending == ".bin" || ending == ".pth" || ending == ".pt") {
        fail_input(
            "{}: its weights are pickles ({}), which could run code when loaded; convert them to "
            "safetensors",
            folder_.string(), entry.path().filename().string());
      }
    }
    fail_input("{}: holds no model.safetensors and no model.safetensors.index.json",
               folder_.string());
  }

  template <typename Advice>
  void for_layer(int layer, const Advice& advice) const {
    for (const Expected& expected : layer_tensors(config_, layer)) {
      const auto home = homes_.find(expected.name);
      if (home != homes_.end()) advice(*home->second, tensors_.at(expected.name));
    }
  }

  fs::path folder_;
  ModelConfig config_;
  std::deque<MappedFile> files_;
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, const MappedFile*> homes_;
  std::map<std::string, std::string> skipped_;  ///< tensors of unsupported types, and the type
  mutable std::string fingerprint_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_huggingface(const fs::path& folder) {
  return std::make_unique<HuggingFaceCheckpoint>(folder);
}

}  // namespace oscar
