#include "oscar/checkpoint/config.h"

#include <algorithm>

#include "checkpoint/config_fields.h"

namespace oscar {

void ConfigFields::refuse_unread() const {
  for (const auto& [key, value] : object_.items()) {
    if (read_.contains(key) || key.starts_with("_")) continue;
    const bool idle = value.is_null() || value == false || value == 0 || value == "" ||
                      (value.is_structured() && value.empty());
    if (!idle) {
      fail_input(
          "{}: the field \"{}\" = {} is not understood and might change the model's mathematics; "
          "oscar supports "
          "Llama, Mistral without a window, Qwen2 and Qwen3",
          source_, key, value.dump().substr(0, 80));
    }
  }
}

namespace {

RopeConfig::Scaling scaling_of(const std::string& word, const std::string& source) {
  if (word == "default") return RopeConfig::Scaling::none;
  if (word == "linear") return RopeConfig::Scaling::linear;
  if (word == "llama3") return RopeConfig::Scaling::llama3;
  if (word == "yarn") return RopeConfig::Scaling::yarn;
  fail_input("{}: rope_type \"{}\" is not supported; default, linear, llama3 and yarn are", source,
             word);
}

/// The scaling fields, from rope_scaling (old spelling) or rope_parameters (new).
void read_scaling(const Json& object, const std::string& source, RopeConfig& rope) {
  ConfigFields fields(object, source);
  const auto old_word = fields.find<std::string>("type");
  const auto word = fields.find<std::string>("rope_type");
  rope.scaling = scaling_of(word.value_or(old_word.value_or("default")), source);
  if (const auto theta = fields.find<double>("rope_theta")) rope.theta = *theta;
  if (const auto partial = fields.find<double>("partial_rotary_factor");
      partial && *partial != 1.0) {
    fail_input("{}: partial_rotary_factor {} is not supported", source, *partial);
  }
  switch (rope.scaling) {
    case RopeConfig::Scaling::none:
      fields.ignore({"factor"});
      break;
    case RopeConfig::Scaling::linear:
      rope.factor = fields.require<double>("factor");
      break;
    case RopeConfig::Scaling::llama3:
      rope.factor = fields.require<double>("factor");
      rope.low_frequency_factor = fields.require<double>("low_freq_factor");
      rope.high_frequency_factor = fields.require<double>("high_freq_factor");
      rope.original_max_positions =
          fields.require<std::int64_t>("original_max_position_embeddings");
      break;
    case RopeConfig::Scaling::yarn:
      rope.factor = fields.require<double>("factor");
      rope.original_max_positions =
          fields.find<std::int64_t>("original_max_position_embeddings").value_or(0);
      rope.beta_fast = fields.find<double>("beta_fast").value_or(32.0);
      rope.beta_slow = fields.find<double>("beta_slow").value_or(1.0);
      rope.attention_factor = fields.find<double>("attention_factor").value_or(0.0);
      rope.mscale = fields.find<double>("mscale").value_or(0.0);
      rope.mscale_all_dim = fields.find<double>("mscale_all_dim").value_or(0.0);
      rope.truncate = fields.find<bool>("truncate").value_or(true);
      break;
  }
  fields.ignore({"original_max_position_embeddings"});
  fields.refuse_unread();
}

void refuse_windows(ConfigFields& fields, const ModelConfig& config) {
  const auto window = fields.find<std::int64_t>("sliding_window");
  const auto use_window = fields.find<bool>("use_sliding_window");
  fields.ignore({"max_window_layers"});
  const bool switched_off = config.architecture != "mistral" && !use_window.value_or(false);
  if (window && !switched_off && *window < config.max_positions) {
    fail_input("{}: sliding_window {} is not supported; the model must attend to all positions",
               fields.source(), *window);
  }
  for (const std::string& type :
       fields.find<std::vector<std::string>>("layer_types").value_or(std::vector<std::string>{})) {
    if (type != "full_attention") {
      fail_input("{}: layer_types holds \"{}\"; only full_attention is supported", fields.source(),
                 type);
    }
  }
}

constexpr std::int64_t kMostLayers = 10000, kMost = std::int64_t{1} << 31;

void check_sizes(const ModelConfig& c, const std::string& source) {
  const auto positive = [&](std::int64_t value, const char* name, std::int64_t most = kMost) {
    if (value < 1 || value > most) {
      fail_input("{}: {} is {}; expected 1 to {}", source, name, value, most);
    }
  };
  positive(c.vocabulary, "vocab_size");
  positive(c.hidden_size, "hidden_size");
  positive(c.intermediate_size, "intermediate_size");
  positive(c.layers, "num_hidden_layers", kMostLayers);
  positive(c.q_heads, "num_attention_heads");
  positive(c.kv_heads, "num_key_value_heads");
  positive(c.head_dim, "head_dim");
  if (c.q_heads % c.kv_heads != 0) {
    fail_input("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", source,
               c.q_heads, c.kv_heads);
  }
  if (c.head_dim % 4 != 0) {
    fail_input("{}: head_dim {} is not a multiple of 4, so its keys cannot be packed at two bits",
               source, c.head_dim);
  }
}

std::string supported_architecture(const std::string& type, const std::string& source) {
  for (const char* known : {"llama", "mistral", "qwen2", "qwen3"}) {
    if (type == known) return type;
  }
  fail_input("{}: model_type \"{}\" is not supported; llama, mistral, qwen2 and qwen3 are", source,
             type);
}

}  // namespace

ModelConfig read_config(const std::filesystem::path& path) {
  const Json json = read_json(path);
  if (!json.is_object()) fail_input("{}: is not a JSON object", path.string());
  ConfigFields fields(json, path.string());
  ModelConfig c;
  c.architecture = supported_architecture(fields.require<std::string>("model_type"), path.string());
  c.vocabulary = fields.require<std::int64_t>("vocab_size");
  c.hidden_size = fields.require<std::int64_t>("hidden_size");
  c.intermediate_size = fields.require<std::int64_t>("intermediate_size");
  c.layers = fields.require<int>("num_hidden_layers");
  c.q_heads = fields.require<int>("num_attention_heads");
  c.kv_heads = fields.find<int>("num_key_value_heads").value_or(c.q_heads);
  if (c.q_heads < 1) fail_input("{}: num_attention_heads is {}", path.string(), c.q_heads);
  const int default_dim = static_cast<int>(c.hidden_size / c.q_heads);
  c.head_dim = fields.find<int>("head_dim").value_or(c.architecture == "qwen3" ? 128 : default_dim);
  c.value_dim = c.head_dim;
  c.norm_epsilon = fields.find<double>("rms_norm_eps").value_or(1e-6);
  c.tied_embeddings = fields.find<bool>("tie_word_embeddings").value_or(false);
  c.max_positions = fields.find<std::int64_t>("max_position_embeddings").value_or(2048);

  const bool attention_bias = fields.find<bool>("attention_bias").value_or(false);
  c.qkv_bias = c.architecture == "qwen2" || attention_bias;
  c.output_bias = (c.architecture == "llama" || c.architecture == "qwen3") && attention_bias;
  c.mlp_bias = c.architecture == "llama" && fields.find<bool>("mlp_bias").value_or(false);
  c.qk_norm = c.architecture == "qwen3";

  c.rope.theta = fields.find<double>("rope_theta").value_or(10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (const auto scaling = fields.find<Json>(key)) {
      read_scaling(*scaling, path.string() + ": " + key, c.rope);
    }
  }
  if (c.rope.scaling == RopeConfig::Scaling::yarn && c.rope.original_max_positions == 0) {
    c.rope.original_max_positions = c.max_positions;
  }
  const auto old_type = fields.find<std::string>("torch_dtype");
  c.stored_type = fields.find<std::string>("dtype").value_or(old_type.value_or("float32"));

  if (const auto activation = fields.find<std::string>("hidden_act");
      activation && *activation != "silu") {
    fail_input("{}: hidden_act \"{}\" is not supported; silu is", path.string(), *activation);
  }
  if (const auto partial = fields.find<double>("partial_rotary_factor");
      partial && *partial != 1.0) {
    fail_input("{}: partial_rotary_factor {} is not supported", path.string(), *partial);
  }
  if (fields.find<Json>("quantization_config")) {
    fail_input(
        "{}: quantization_config is set; quantised Hugging Face checkpoints are not supported, use "
        "the original "
        "weights or a GGUF file",
        path.string());
  }
  refuse_windows(fields, c);
  // Tokens, training, generation and bookkeeping: nothing that a forward pass sees.
  fields.ignore({"architectures",
                 "transformers_version",
                 "use_cache",
                 "bos_token_id",
                 "eos_token_id",
                 "pad_token_id",
                 "sep_token_id",
                 "decoder_start_token_id",
                 "initializer_range",
                 "attention_dropout",
                 "hidden_dropout",
                 "pretraining_tp",
                 "name_or_path",
                 "is_llama_config",
                 "rope_interleaved",
                 "auto_map",
                 "id2label",
                 "label2id",
                 "return_dict",
                 "output_attentions",
                 "output_hidden_states",
                 "chunk_size_feed_forward",
                 "problem_type",
                 "tokenizer_class",
                 "task_specific_params",
                 "finetuning_task",
                 "prefix",
                 "is_decoder",
                 "is_encoder_decoder",
                 "transformers.js_config",
                 "unsloth_version",
                 "unsloth_fixed",
                 "top_k",
                 "top_p",
                 "temperature",
                 "max_length",
                 "min_length",
                 "num_beams",
                 "num_return_sequences",
                 "do_sample",
                 "early_stopping",
                 "repetition_penalty",
                 "length_penalty",
                 "typical_p",
                 "diversity_penalty",
                 "encoder_no_repeat_ngram_size",
                 "no_repeat_ngram_size",
                 "num_beam_groups",
                 "bad_words_ids",
                 "remove_invalid_values",
                 "return_dict_in_generate",
                 "output_scores",
                 "torchscript",
                 "tf_legacy_loss",
                 "use_bfloat16",
                 "exponential_decay_length_penalty",
                 "suppress_tokens",
                 "begin_suppress_tokens",
                 "forced_bos_token_id",
                 "forced_eos_token_id",
                 "pruned_heads",
                 "cross_attention_hidden_size",
                 "add_cross_attention",
                 "tie_encoder_decoder"});
  fields.refuse_unread();
  check_sizes(c, path.string());
  return c;
}

}  // namespace oscar
