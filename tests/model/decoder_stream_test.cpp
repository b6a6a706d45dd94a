#include "oscar/model/decoder_stream.h"

#include <ATen/ATen.h>

#include <cstring>
#include <limits>
#include <optional>

#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "support.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

TokenBatch tiny_tokens() {
  TokenBatch batch;
  batch.sequence_length = 24;
  for (const int length : {24, 7, 1, 16}) {
    std::vector<TokenId> sequence;
    for (int i = 0; i < length; ++i) sequence.push_back((i * 7 + length) % 48);
    batch.sequences.push_back(std::move(sequence));
  }
  return batch;
}

fs::path tiny_model() {
  return test::fixture("checkpoint/tiny-llama");
}

void run_all(DecoderStream& stream) {
  while (stream.next_layer() < stream.layer_count()) stream.run_layer();
}

class Counter : public AttentionHook {
 public:
  void on_attention(const AttentionEvent& event) override {
    ++calls;
    tokens += event.q.size(0);
    last = event;
  }
  int calls = 0;
  std::int64_t tokens = 0;
  AttentionEvent last;
};

TEST(AttentionHook, SeesEverySequenceOfEveryLayer) {
  const auto checkpoint = Checkpoint::open(tiny_model());
  const TokenBatch batch = tiny_tokens();
  DecoderStream stream(*checkpoint, batch, {});
  Counter first, second;
  const auto a = stream.add_hook(first);
  {
    const auto b = stream.add_hook(second);
    stream.run_layer();
  }
  stream.run_layer();
  EXPECT_EQ(first.calls, 8);
  EXPECT_EQ(first.tokens, 2 * batch.tokens());
  EXPECT_EQ(second.calls, 4);  // its registration ended after the first layer
  EXPECT_EQ(first.last.layer, 1);
  EXPECT_EQ(first.last.sequence, 3);
  EXPECT_EQ(first.last.q.sizes(), (at::IntArrayRef{16, 4, 8}));
  EXPECT_EQ(first.last.k.sizes(), (at::IntArrayRef{16, 2, 8}));
  EXPECT_EQ(first.last.output.sizes(), (at::IntArrayRef{16, 4, 8}));
  EXPECT_EQ(first.last.positions[15].item().toLong(), 15);
}

TEST(AttentionHook, RegistrationMayOutliveTheStream) {
  const auto checkpoint = Checkpoint::open(tiny_model());
  const TokenBatch batch = tiny_tokens();
  Counter counter;
  std::optional<DecoderStream::HookRegistration> registration;
  {
    DecoderStream stream(*checkpoint, batch, {});
    registration = stream.add_hook(counter);
    auto moved = std::move(*registration);
    registration = std::move(moved);
    stream.run_layer();
  }
  EXPECT_EQ(counter.calls, 4);
  registration.reset();
}

/// Attention in float64, written as the definition says.
TEST(AttentionHook, OutputIsCausalAttention) {
  const auto checkpoint = Checkpoint::open(tiny_model());
  const TokenBatch batch = tiny_tokens();
  DecoderStream stream(*checkpoint, batch, {});
  Counter counter;
  const auto registration = stream.add_hook(counter);
  run_all(stream);
  const AttentionEvent& e = counter.last;
  for (std::int64_t head = 0; head < 4; ++head) {
    const at::Tensor q = e.q.select(1, head).to(at::kDouble),
                     k = e.k.select(1, head / 2).to(at::kDouble),
                     v = e.v.select(1, head / 2).to(at::kDouble);
    const at::Tensor scores = at::mm(q, k.t()) * e.scale;
    const at::Tensor mask = at::ones_like(scores).triu(1).to(at::kBool);
    const at::Tensor expected =
        at::mm(scores.masked_fill(mask, -std::numeric_limits<double>::infinity()).softmax(-1), v);
    EXPECT_TRUE(at::allclose(e.output.select(1, head).to(at::kDouble), expected, 1e-5, 1e-5))
        << head;
  }
}

TEST(DecoderStream, PatchesOneStreamAlone) {
  const auto checkpoint = Checkpoint::open(tiny_model());
  const TokenBatch batch = tiny_tokens();
  const test::TemporaryFolder folder;
  const std::string name = "model.layers.1.self_attn.k_proj.weight";
  const TensorView& original = checkpoint->tensor(name);
  const PatchTensor zeros{name, original.shape,
                          std::vector<float>(static_cast<std::size_t>(original.elements()))};
  write_patch(folder / "patch.safetensors", std::span(&zeros, 1));
  const auto patch = CheckpointPatch::open(folder / "patch.safetensors", *checkpoint);

  DecoderStream plain(*checkpoint, batch, {}), patched(*checkpoint, batch, {.patch = patch.get()});
  DecoderStream both(*checkpoint, batch, {});
  ASSERT_EQ(both.add_stream({}, patch.get()), 1);
  Counter counter;
  const auto registration = patched.add_hook(counter);
  for (DecoderStream* stream : {&plain, &patched, &both}) run_all(*stream);
  EXPECT_EQ(counter.last.layer, 1);
  EXPECT_EQ(counter.last.k.abs().max().item().toDouble(), 0);
  EXPECT_TRUE(at::equal(both.logits(0, 0, 0, 24), plain.logits(0, 0, 0, 24)));
  EXPECT_TRUE(at::equal(both.logits(1, 0, 0, 24), patched.logits(0, 0, 0, 24)));
  EXPECT_FALSE(at::allclose(both.logits(0, 0, 0, 24), both.logits(1, 0, 0, 24), 1e-3, 1e-3));
}

TEST(DecoderStream, DoesNotDependOnChunks) {
  const auto checkpoint = Checkpoint::open(tiny_model());
  const TokenBatch batch = tiny_tokens();
  DecoderStream whole(*checkpoint, batch, {}), parts(*checkpoint, batch, {.chunk_tokens = 8});
  run_all(whole);
  run_all(parts);
  for (std::int64_t s = 0; s < 4; ++s) {
    const auto length =
        static_cast<std::int64_t>(batch.sequences[static_cast<std::size_t>(s)].size());
    EXPECT_TRUE(
        at::allclose(whole.logits(0, s, 0, length), parts.logits(0, s, 0, length), 1e-5, 1e-4));
  }
}

TEST(DecoderStream, StreamsWithExactAttentionAreEqual) {
  const auto checkpoint = Checkpoint::open(tiny_model());
  const TokenBatch batch = tiny_tokens();
  DecoderStream stream(*checkpoint, batch, {});
  const int other = stream.add_stream({});
  const int silent = stream.add_stream([](const AttentionEvent& e) { return at::zeros_like(e.q); });
  run_all(stream);
  EXPECT_TRUE(at::equal(stream.logits(0, 0, 0, 24), stream.logits(other, 0, 0, 24)));
  EXPECT_FALSE(at::allclose(stream.logits(0, 0, 0, 24), stream.logits(silent, 0, 0, 24)));
}

TEST(DecoderStream, GoesOnFromASavedState) {
  const auto checkpoint = Checkpoint::open(tiny_model());
  const TokenBatch batch = tiny_tokens();
  const test::TemporaryFolder folder;
  DecoderStream whole(*checkpoint, batch, {}), resumed(*checkpoint, batch, {});
  whole.run_layer();
  whole.save_state(folder / "state");
  whole.run_layer();
  resumed.restore_state(folder / "state");
  EXPECT_EQ(resumed.next_layer(), 1);
  resumed.run_layer();
  EXPECT_TRUE(at::equal(whole.logits(0, 0, 0, 24), resumed.logits(0, 0, 0, 24)));

  TokenBatch other = batch;
  other.sequences[0][0] = 3;
  DecoderStream stranger(*checkpoint, other, {});
  EXPECT_THROW_WITH(stranger.restore_state(folder / "state"), InputError, "dataset_sha256");
  std::string bytes = read_file(folder / "state");
  bytes.back() ^= 1;
  write_file(folder / "state", bytes);
  EXPECT_THROW_WITH(resumed.restore_state(folder / "state"), InputError, "damaged");
}

TEST(DecoderStream, RefusesTokensAndLengthsThatDoNotFit) {
  const auto checkpoint = Checkpoint::open(tiny_model());
  TokenBatch batch = tiny_tokens();
  batch.sequences[1][2] = 48;
  EXPECT_THROW_WITH(DecoderStream(*checkpoint, batch, {}), InputError,
                    "outside the model's vocabulary");
  batch.sequences[1].assign(129, 0);
  EXPECT_THROW_WITH(DecoderStream(*checkpoint, batch, {}), InputError,
                    "longer than the model's 128 positions");
}

/// Overwrites one float of a tensor in a copy of the tiny model.
void poison(const fs::path& folder, const std::string& tensor, float value) {
  const auto checkpoint = Checkpoint::open(folder);
  const auto data = checkpoint->tensor(tensor).data;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string bytes = entry.path().extension() == ".safetensors" ? read_file(entry.path()) : "";
    const std::string needle(reinterpret_cast<const char*>(data.data()), 64);
    const auto at = bytes.find(needle);
    if (at == std::string::npos) continue;
    std::memcpy(bytes.data() + at + 12, &value, 4);
    write_file(entry.path(), bytes);
    return;
  }
  FAIL() << tensor << " was not found";
}

TEST(DecoderStream, NamesTheWeightThatIsNaN) {
  const test::TemporaryFolder folder;
  fs::copy(tiny_model(), folder / "model");
  poison(folder / "model", "model.layers.1.mlp.up_proj.weight",
         std::numeric_limits<float>::quiet_NaN());
  const auto checkpoint = Checkpoint::open(folder / "model");
  const TokenBatch batch = tiny_tokens();
  DecoderStream stream(*checkpoint, batch, {});
  stream.run_layer();
  EXPECT_THROW_WITH(stream.run_layer(), InputError,
                    "layer 1: the weight model.layers.1.mlp.up_proj.weight");
}

TEST(DecoderStream, SaysWhereActivationsOverflow) {
  const test::TemporaryFolder folder;
  fs::copy(tiny_model(), folder / "model");
  poison(folder / "model", "model.layers.0.self_attn.v_proj.weight", 3e38f);
  const auto checkpoint = Checkpoint::open(folder / "model");
  const TokenBatch batch = tiny_tokens();
  DecoderStream stream(*checkpoint, batch, {});
  EXPECT_THROW_WITH(run_all(stream), InputError, "not finite in");
}

}  // namespace
}  // namespace oscar
