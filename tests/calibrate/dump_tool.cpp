// dump_tool MODEL TEXT OUTPUT TOKENS LENGTH: a hook that writes every layer's q, k and v as raw
// float32 [T, heads, D], OUTPUT/layer_<id>/{q,k,v}/<sequence + 1>.f32, for programs that calibrate
// from dumps.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdio>
#include <fstream>

#include "oscar/model/decoder_stream.h"

namespace fs = std::filesystem;

class Dump : public oscar::AttentionHook {
 public:
  explicit Dump(fs::path folder) : folder_(std::move(folder)) {}

  void on_attention(const oscar::AttentionEvent& event) override {
    write(event, "q", event.q);
    write(event, "k", event.k);
    write(event, "v", event.v);
  }

 private:
  void write(const oscar::AttentionEvent& event, const char* name, const at::Tensor& x) const {
    const fs::path folder = folder_ / fmt::format("layer_{}", event.layer) / name;
    fs::create_directories(folder);
    const at::Tensor host = x.to(at::kCPU, at::kFloat).contiguous();
    std::ofstream out(folder / fmt::format("{}.f32", event.sequence + 1), std::ios::binary);
    out.write(static_cast<const char*>(host.const_data_ptr()),
              static_cast<std::streamsize>(host.nbytes()));
  }
  fs::path folder_;
};

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  try {
    const auto checkpoint = oscar::Checkpoint::open(argv[1]);
    const auto tokenizer = oscar::Tokenizer::load(argv[1]);
    const oscar::TokenBatch tokens =
        oscar::load_prompts(tokenizer, oscar::ChatTemplate::load("none", argv[1]),
                            {.files = {argv[2]},
                             .tokens = std::stoll(argv[4]),
                             .sequence_length = std::stoll(argv[5])});
    oscar::DecoderStream stream(*checkpoint, tokens, {});
    Dump dump(argv[3]);
    const auto registration = stream.add_hook(dump);
    while (stream.next_layer() < stream.layer_count()) stream.run_layer();
  } catch (const std::exception& error) {
    fmt::print(stderr, "dump_tool: {}\n", error.what());
    return 1;
  }
}
