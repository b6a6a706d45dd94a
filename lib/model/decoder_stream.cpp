#include "oscar/model/decoder_stream.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <map>

#include "model/decoder_layer.h"
#include "model/layer_weights.h"
#include "model/rope.h"
#include "model/state_file.h"
#include "oscar/core/error.h"

namespace oscar {

namespace {

/// Sequences that pass through the linear layers together, as rows [begin, end) of the hidden
/// states.
struct Chunk {
  std::size_t first_sequence, last_sequence;  // [first, last)
  std::int64_t begin, end;
};

at::Device torch_device(const Device& device) {
  return device.is_cuda() ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device.index))
                          : at::Device(at::kCPU);
}

}  // namespace

struct DecoderStream::Impl {
  struct Stream {
    at::Tensor hidden;            ///< [all tokens, hidden]
    AttentionFunction attention;  ///< empty: exact
    const CheckpointPatch* patch = nullptr;
  };

  const Checkpoint& checkpoint;
  const TokenBatch& tokens;
  StreamOptions options;
  at::Device device;
  at::ScalarType type;
  std::vector<std::int64_t> offsets;  ///< first row of each sequence, and the end
  std::vector<Chunk> chunks;
  std::vector<Stream> streams;
  std::list<AttentionHook*> hooks;
  /// Shared with registrations, so that one may outlive the stream.
  std::shared_ptr<Impl*> self = std::make_shared<Impl*>(this);
  RopeTables rope;  ///< in the stream's type
  LayerLoader loader;
  at::Tensor final_norm, head;
  int next_layer = 0;

  Impl(const Checkpoint& c, const TokenBatch& t, const StreamOptions& o)
      : checkpoint(c),
        tokens(t),
        options(o),
        device(torch_device(o.device)),
        type(o.precision == Precision::bf16 ? at::kBFloat16 : at::kFloat),
        loader(c, type, device) {}

  const ModelConfig& config() const { return checkpoint.config(); }

  void lay_out() {
    offsets = {0};
    const std::int64_t most = options.chunk_tokens > 0 ? options.chunk_tokens
                              : device.is_cuda()       ? 16384
                                                       : 2048;
    for (std::size_t s = 0; s < tokens.sequences.size(); ++s) {
      const auto length = static_cast<std::int64_t>(tokens.sequences[s].size());
      if (length > config().max_positions) {
        fail_input(
            "a sequence of {} tokens is longer than the model's {} positions; use a smaller "
            "--sequence-length",
            length, config().max_positions);
      }
      offsets.push_back(offsets.back() + length);
      if (chunks.empty() || offsets.back() - chunks.back().begin > most) {
        chunks.push_back({s, s, offsets[s], offsets[s]});
      }
      chunks.back().last_sequence = s + 1;
      chunks.back().end = offsets.back();
    }
  }

  /// Embeds the tokens: only the rows that occur are read from the checkpoint.
  at::Tensor embed() const {
    std::map<TokenId, std::int64_t> rows;
    for (const auto& sequence : tokens.sequences) {
      for (const TokenId id : sequence) {
        if (id < 0 || id >= config().vocabulary) {
          fail_input(
              "the token {} is outside the model's vocabulary of {}; is the tokenizer of another "
              "model?",
              id, config().vocabulary);
        }
        rows.emplace(id, 0);
      }
    }
    const TensorView& embedding = checkpoint.tensor("model.embed_tokens.weight");
    at::Tensor table =
        at::empty({static_cast<std::int64_t>(rows.size()), config().hidden_size}, type);
    std::int64_t next = 0;
    for (auto& [id, row] : rows) {
      row = next++;
      table[row].copy_(load_tensor(embedding, id, 1, type, at::kCPU)[0]);
    }
    std::vector<std::int64_t> index;
    for (const auto& sequence : tokens.sequences) {
      for (const TokenId id : sequence) index.push_back(rows.at(id));
    }
    return table.index_select(0, at::tensor(index, at::kLong)).to(device);
  }

  std::int64_t length(std::size_t sequence) const {
    return offsets[sequence + 1] - offsets[sequence];
  }

  /// Positions of a chunk's rows: each sequence counts from 0.
  at::Tensor positions(const Chunk& chunk) const {
    std::vector<at::Tensor> parts;
    for (std::size_t s = chunk.first_sequence; s < chunk.last_sequence; ++s) {
      parts.push_back(at::arange(length(s), at::TensorOptions(at::kLong).device(device)));
    }
    return at::cat(parts);
  }

  at::Tensor attend(int stream, const Chunk& chunk, const Projections& p,
                    const at::Tensor& position, const at::Tensor& output_weight) {
    at::Tensor output =
        at::empty({p.q.size(0), config().q_heads, config().value_dim}, p.q.options());
    for (std::size_t s = chunk.first_sequence; s < chunk.last_sequence; ++s) {
      const std::int64_t begin = offsets[s] - chunk.begin, end = offsets[s + 1] - chunk.begin;
      AttentionEvent event;
      event.layer = next_layer;
      event.stream = stream;
      event.sequence = static_cast<std::int64_t>(s);
      event.positions = position.slice(0, begin, end);
      event.q = p.q.slice(0, begin, end);
      event.k = p.k.slice(0, begin, end);
      event.v = p.v.slice(0, begin, end);
      event.output_weight = output_weight;
      event.scale = 1.0 / std::sqrt(static_cast<double>(config().head_dim));
      const auto& attention = streams[static_cast<std::size_t>(stream)].attention;
      const at::Tensor result =
          attention ? attention(event) : exact_attention(event.q, event.k, event.v, event.scale);
      event.output = output.slice(0, begin, end);
      event.output.copy_(result);
      if (options.check_finite) check_attention(event);
      for (AttentionHook* hook : hooks) hook->on_attention(event);
    }
    return output.view({output.size(0), -1});
  }

  /// Throws if attention computed a number that is not finite, naming where.
  void check_attention(const AttentionEvent& event) const {
    const at::Tensor finite = at::isfinite(event.output.sum());
    if (finite.item().toBool()) return;
    const at::Tensor bad =
        at::isfinite(event.output).logical_not().any(-1).nonzero();  // [n, 2]: token, head
    if (bad.size(0) == 0) return;                                    // only the sum overflowed
    fail_input(
        "{}: layer {}: attention is not finite in head {}, sequence {}, token {}{}; the weights or "
        "the precision are "
        "at fault",
        checkpoint.path().string(), event.layer, bad[0][1].item().toLong(), event.sequence,
        bad[0][0].item().toLong(), event.stream == 0 ? "" : " (a candidate's stream)");
  }

  void check_hidden(int stream, const Chunk& chunk, const at::Tensor& hidden) const {
    if (!options.check_finite || at::isfinite(hidden.sum()).item().toBool()) return;
    const at::Tensor bad = at::isfinite(hidden).logical_not().any(-1).nonzero();
    if (bad.size(0) == 0) return;
    const std::int64_t row = chunk.begin + bad[0][0].item().toLong();
    const auto sequence =
        std::upper_bound(offsets.begin(), offsets.end(), row) - offsets.begin() - 1;
    fail_input(
        "{}: layer {}: the hidden state is not finite in sequence {}, token {}{}; the weights or "
        "the precision are "
        "at fault",
        checkpoint.path().string(), next_layer, sequence,
        row - offsets[static_cast<std::size_t>(sequence)],
        stream == 0 ? "" : " (a candidate's stream)");
  }

  void run_chunk(int stream, const Chunk& chunk, const LayerWeights& w) {
    at::Tensor hidden =
        streams[static_cast<std::size_t>(stream)].hidden.slice(0, chunk.begin, chunk.end);
    const at::Tensor position = positions(chunk);
    const at::Tensor cos = rope.cos.index_select(0, position).unsqueeze(1),
                     sin = rope.sin.index_select(0, position).unsqueeze(1);
    const double epsilon = config().norm_epsilon;
    const Projections p = project(rms_norm(hidden, w.input_norm, epsilon), w, config(), cos, sin);
    hidden.add_(apply_linear(attend(stream, chunk, p, position, w.o), w.o, w.o_bias));
    hidden.add_(feed_forward(rms_norm(hidden, w.post_attention_norm, epsilon), w));
    check_hidden(stream, chunk, hidden);
  }

  StreamState state() const {
    return {checkpoint.fingerprint(), tokens.sha256(), name_of(options.precision), next_layer,
            streams[0].hidden.to(at::kCPU).contiguous()};
  }
};

const char* name_of(Precision precision) {
  return precision == Precision::bf16 ? "bf16" : "fp32";
}

Precision parse_precision(std::string_view word, const Device& device) {
  if (word == "fp32") return Precision::fp32;
  if (word == "bf16") return Precision::bf16;
  if (word == "auto") return device.is_cuda() ? Precision::bf16 : Precision::fp32;
  fail_input("precision \"{}\" is not known; use fp32, bf16 or auto", word);
}

DecoderStream::DecoderStream(const Checkpoint& checkpoint, const TokenBatch& tokens,
                             const StreamOptions& options)
    : impl_(std::make_unique<Impl>(checkpoint, tokens, options)) {
  // fp32 means fp32: no TF32 in products, and the same kernels every time.
  at::globalContext().setAllowTF32CuBLAS(false);
  at::globalContext().setDeterministicCuDNN(true);
  const at::InferenceMode guard;
  impl_->lay_out();
  impl_->streams.push_back({impl_->embed(), {}, options.patch});
  std::int64_t longest = 0;
  for (std::size_t s = 0; s < tokens.sequences.size(); ++s)
    longest = std::max(longest, impl_->length(s));
  const RopeTables tables = rope_tables(checkpoint.config(), longest, impl_->device);
  impl_->rope = {tables.cos.to(impl_->type), tables.sin.to(impl_->type)};
}

DecoderStream::~DecoderStream() = default;

int DecoderStream::add_stream(AttentionFunction attention, const CheckpointPatch* patch) {
  if (impl_->next_layer != 0) fail("streams are added before the first layer runs");
  impl_->streams.push_back({impl_->streams[0].hidden.clone(), std::move(attention), patch});
  return static_cast<int>(impl_->streams.size()) - 1;
}

int DecoderStream::layer_count() const {
  return impl_->config().layers;
}
int DecoderStream::next_layer() const {
  return impl_->next_layer;
}

void DecoderStream::run_layer() {
  if (next_layer() >= layer_count()) fail("all {} layers have run", layer_count());
  const at::InferenceMode guard;
  const int layer = impl_->next_layer;
  const LayerWeights loaded = impl_->loader.take(layer);
  std::vector<LayerWeights> weights;
  for (const Impl::Stream& stream : impl_->streams) {
    weights.push_back(
        stream.patch == nullptr ? loaded : impl_->loader.patched(loaded, layer, *stream.patch));
  }
  for (const Chunk& chunk : impl_->chunks) {
    for (std::size_t stream = 0; stream < impl_->streams.size(); ++stream) {
      impl_->run_chunk(static_cast<int>(stream), chunk, weights[stream]);
    }
  }
  ++impl_->next_layer;
}

at::Tensor DecoderStream::logits(int stream, std::int64_t sequence, std::int64_t first,
                                 std::int64_t last) {
  if (next_layer() != layer_count()) fail("logits are there after the last layer");
  const at::InferenceMode guard;
  Impl& m = *impl_;
  if (!m.head.defined()) {
    const TensorView& norm = m.checkpoint.tensor("model.norm.weight");
    const TensorView& head = m.checkpoint.tensor("lm_head.weight");
    m.final_norm = load_tensor(norm, 0, norm.rows(), m.type, m.device);
    m.head = load_tensor(head, 0, head.rows(), m.type, m.device);
  }
  const std::int64_t begin = m.offsets.at(static_cast<std::size_t>(sequence));
  const at::Tensor hidden =
      m.streams.at(static_cast<std::size_t>(stream)).hidden.slice(0, begin + first, begin + last);
  return apply_linear(rms_norm(hidden, m.final_norm, m.config().norm_epsilon), m.head)
      .to(at::kFloat);
}

void DecoderStream::save_state(const std::filesystem::path& path) const {
  save_state_file(path, impl_->state());
}

void DecoderStream::restore_state(const std::filesystem::path& path) {
  const at::InferenceMode guard;
  const StreamState state = load_state_file(path, impl_->state());
  if (state.next_layer < 0 || state.next_layer > layer_count()) {
    fail_input("{}: says that layer {} comes next, but the model has {}", path.string(),
               state.next_layer, layer_count());
  }
  impl_->streams[0].hidden.copy_(state.hidden);
  impl_->next_layer = state.next_layer;
}

DecoderStream::HookRegistration DecoderStream::add_hook(AttentionHook& hook) {
  impl_->hooks.push_back(&hook);
  std::weak_ptr<Impl*> stream = impl_->self;
  return HookRegistration([stream, registered = &hook] {
    if (const auto alive = stream.lock()) {
      auto& hooks = (*alive)->hooks;
      const auto found = std::find(hooks.begin(), hooks.end(), registered);
      if (found != hooks.end()) hooks.erase(found);
    }
  });
}

}  // namespace oscar
