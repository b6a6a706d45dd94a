#include <random>

#include "oscar/checkpoint/checkpoint.h"
#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "oscar/core/json.h"
#include "support.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

/// A copy of the tiny checkpoint that a test may spoil.
class TinyLlama : public testing::Test {
 protected:
  TinyLlama() { fs::copy(test::fixture("checkpoint/tiny-llama"), folder_ / "model"); }

  fs::path path(const std::string& name = "") const { return folder_ / ("model/" + name); }
  static constexpr const char* kFirst = "model-00001-of-00002.safetensors";

  void set_config(const char* key, const Json& value) {
    Json config = read_json(path("config.json"));
    config[key] = value;
    write_file(path("config.json"), config.dump());
  }

  test::TemporaryFolder folder_;
};

TEST_F(TinyLlama, Opens) {
  const auto checkpoint = Checkpoint::open(path());
  const ModelConfig& c = checkpoint->config();
  EXPECT_EQ(c.architecture, "llama");
  EXPECT_EQ(c.q_heads, 4);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_TRUE(checkpoint->has("lm_head.weight"));
  EXPECT_EQ(checkpoint->tensor("model.norm.weight").shape, (std::vector<std::int64_t>{32}));
}

TEST_F(TinyLlama, FingerprintFollowsTheWeightsNotThePath) {
  const std::string original =
      Checkpoint::open(test::fixture("checkpoint/tiny-llama"))->fingerprint();
  EXPECT_EQ(Checkpoint::open(path())->fingerprint(), original);
  EXPECT_TRUE(original.starts_with("xxh3:"));
  std::string shard = read_file(path(kFirst));
  shard[shard.size() - 8] ^= 1;
  write_file(path(kFirst), shard);
  EXPECT_NE(Checkpoint::open(path())->fingerprint(), original);
}

TEST_F(TinyLlama, NewConfigSpellingMeansTheSame) {
  Json config = read_json(path("config.json"));
  config.erase("rope_theta");
  config.erase("torch_dtype");
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  config["dtype"] = "float32";
  write_file(path("config.json"), config.dump());
  EXPECT_EQ(Checkpoint::open(path())->fingerprint(),
            Checkpoint::open(test::fixture("checkpoint/tiny-llama"))->fingerprint());
}

TEST_F(TinyLlama, ReadsRopeScaling) {
  set_config("rope_scaling", {{"rope_type", "llama3"},
                              {"factor", 8.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 64}});
  const RopeConfig rope = Checkpoint::open(path())->config().rope;
  EXPECT_EQ(rope.scaling, RopeConfig::Scaling::llama3);
  EXPECT_EQ(rope.factor, 8.0);
  EXPECT_EQ(rope.original_max_positions, 64);
}

struct BadField {
  const char* key;
  Json value;
  const char* message;
  friend std::ostream& operator<<(std::ostream& out, const BadField& f) {
    return out << f.key << " = " << f.value;
  }
};
class RefusesField : public TinyLlama, public testing::WithParamInterface<BadField> {};

TEST_P(RefusesField, NamingIt) {
  set_config(GetParam().key, GetParam().value);
  EXPECT_THROW_WITH(Checkpoint::open(path()), InputError, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    HuggingFace, RefusesField,
    testing::Values(
        BadField{"model_type", "mamba", "model_type \"mamba\""},
        BadField{"hidden_act", "gelu", "hidden_act \"gelu\""},
        BadField{"rope_scaling", {{"rope_type", "longrope"}}, "rope_type \"longrope\""},
        BadField{"rope_scaling", {{"rope_type", "linear"}}, "\"factor\" is missing"},
        BadField{"partial_rotary_factor", 0.5, "partial_rotary_factor"},
        BadField{"attn_logit_softcapping", 50.0, "attn_logit_softcapping"},
        BadField{"sliding_window", 0.5, "wrong type"},
        BadField{"layer_types", {"sliding_attention", "full_attention"}, "sliding_attention"},
        BadField{"quantization_config", {{"bits", 4}}, "quantization_config"},
        BadField{"num_key_value_heads", 3, "not a multiple"},
        BadField{"num_attention_heads", 8, "_proj.weight has the shape"},
        BadField{"num_hidden_layers", 3, "model.layers.2"},
        BadField{"num_hidden_layers", 0, "num_hidden_layers is 0"},
        BadField{"vocab_size", "many", "wrong type"}));

TEST_F(TinyLlama, RefusesMissingOrBrokenShards) {
  const std::string whole = read_file(path(kFirst));
  fs::remove(path(kFirst));
  EXPECT_THROW_WITH(Checkpoint::open(path()), InputError,
                    "shard model-00001-of-00002.safetensors is missing");
  write_file(path(kFirst), whole.substr(0, whole.size() / 2));
  EXPECT_THROW_WITH(Checkpoint::open(path()), InputError, "incomplete download");
  write_file(path(kFirst), whole.substr(0, 5));
  EXPECT_THROW_WITH(Checkpoint::open(path()), InputError, "header ends early");
  write_file(path(kFirst), "\xff\xff\xff\xff\xff\xff\xff\x7f" + whole.substr(8));
  EXPECT_THROW_WITH(Checkpoint::open(path()), InputError, "not a safetensors file");
}

TEST_F(TinyLlama, RefusesAnIndexThatLeavesTheFolder) {
  Json index = read_json(path("model.safetensors.index.json"));
  index["weight_map"]["model.norm.weight"] = "../model/" + std::string(kFirst);
  write_file(path("model.safetensors.index.json"), index.dump());
  EXPECT_THROW_WITH(Checkpoint::open(path()), InputError, "not a file of the folder");
}

/// A safetensors file of one tensor and `bytes` zeros, with this header.
std::string safetensors(const std::string& header, std::size_t bytes) {
  const std::uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + std::string(bytes, '\0');
}

TEST_F(TinyLlama, RefusesLyingHeaders) {
  fs::remove(path("model.safetensors.index.json"));
  const auto refuses = [&](const std::string& header, const char* message) {
    write_file(path("model.safetensors"), safetensors(header, 64));
    EXPECT_THROW_WITH(Checkpoint::open(path()), InputError, message);
  };
  refuses("{not json", "not valid JSON");
  refuses(R"(["a"])", "not a JSON object");
  refuses(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,128]}})", "incomplete download");
  refuses(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}})", "impossible");
  refuses(R"({"a":{"dtype":"F32","shape":[5],"data_offsets":[0,16]}})", "takes 20 bytes");
  refuses(R"({"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}})", "impossible");
  refuses(
      R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,0]}})",
      "impossible");
  refuses(
      R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})",
      "there twice");
  refuses(
      R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}})",
      "overlap");
  refuses(R"({"model.norm.weight":{"dtype":"I8","shape":[32],"data_offsets":[0,32]}})",
          "model.embed_tokens.weight is missing");
}

TEST_F(TinyLlama, RefusesPickles) {
  fs::remove(path("model.safetensors.index.json"));
  write_file(path("pytorch_model.bin"), "pickle");
  EXPECT_THROW_WITH(Checkpoint::open(path()), InputError, "convert them to safetensors");
}

TEST_F(TinyLlama, SurvivesDamage) {
  const std::string whole = read_file(path(kFirst));
  std::mt19937 random(13);
  for (int i = 0; i < 1000; ++i) {
    std::string damaged = whole;
    for (unsigned n = random() % 4 + 1; n-- > 0;)
      damaged[random() % 1200] = static_cast<char>(random());
    test::write_quickly(path(kFirst), damaged);
    try {
      Checkpoint::open(path());
    } catch (const InputError&) {  // the only way in which a bad file may end
    }
  }
}

}  // namespace
}  // namespace oscar
