#include "calibrate/plan.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>

#include "oscar/core/system.h"

namespace oscar {

namespace {

/// Floating-point operations a second of a matrix product shaped like the model's own.
double measured_rate(std::int64_t hidden, std::int64_t rows, Precision precision,
                     const Device& device) {
  const auto type = precision == Precision::bf16 ? at::kBFloat16 : at::kFloat;
  const auto where = device.is_cuda()
                         ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device.index))
                         : at::Device(at::kCPU);
  const at::Tensor a = at::ones({rows, hidden}, at::TensorOptions(type).device(where));
  const at::Tensor b = at::ones({hidden, hidden}, at::TensorOptions(type).device(where));
  const auto run = [&] { return at::mm(a, b).index({0, 0}).item().toDouble(); };  // item() waits
  run();
  const auto start = std::chrono::steady_clock::now();
  run();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return 2.0 * static_cast<double>(rows) * static_cast<double>(hidden * hidden) / seconds;
}

}  // namespace

CalibratePlan make_plan(const ModelConfig& config, const TokenBatch& batch,
                        const TokenBatch& held_out, int trials, Precision precision,
                        const Device& device, std::int64_t samples) {
  CalibratePlan plan;
  plan.held_out_tokens = held_out.tokens();
  plan.trials = trials;
  plan.tokens = batch.tokens();
  plan.sequences = static_cast<std::int64_t>(batch.sequences.size());
  plan.layers = config.layers;
  plan.precision = name_of(precision);

  const std::int64_t bytes = precision == Precision::bf16 ? 2 : 4;
  const std::int64_t q_width = static_cast<std::int64_t>(config.q_heads) * config.head_dim;
  const std::int64_t kv_width =
      static_cast<std::int64_t>(config.kv_heads) * (config.head_dim + config.value_dim);
  const std::int64_t layer_weights =
      config.hidden_size * (2 * q_width + kv_width + 3 * config.intermediate_size);
  const std::int64_t chunk = std::min<std::int64_t>(plan.tokens, device.is_cuda() ? 16384 : 2048);
  const std::int64_t key_square = config.head_dim * config.head_dim,
                     value_square = config.value_dim * config.value_dim;
  const std::int64_t moments =
      2 * key_square + 3 * value_square + 2 * config.head_dim + config.value_dim;
  // All sequences, and half of them; what values cost behind W_o; rows with their attention.
  const std::int64_t statistics = config.kv_heads * (8 * (2 * moments + value_square) +
                                                     4 * std::min(samples, plan.tokens) *
                                                         (config.head_dim + config.value_dim + 2));
  const std::int64_t hidden = plan.tokens * config.hidden_size * bytes;
  const std::int64_t libraries = std::int64_t{600} << 20;
  plan.memory_bytes =
      libraries + hidden + 2 * layer_weights * bytes + plan.tokens * kv_width * bytes +
      chunk * (3 * config.intermediate_size + 4 * config.hidden_size + 4 * q_width) * bytes +
      config.layers * statistics;
  plan.disk_bytes = 2 * config.layers * statistics + 2 * hidden;

  const auto operations = [&](const TokenBatch& text) {
    double attended = 0;  // (query, key) pairs of the causal mask
    for (const auto& sequence : text.sequences) {
      const auto length = static_cast<double>(sequence.size());
      attended += length * (length + 1) / 2;
    }
    return config.layers *
           (2.0 * static_cast<double>(layer_weights) * static_cast<double>(text.tokens()) +
            4.0 * attended * static_cast<double>(q_width));
  };
  constexpr double kRounds = 3;  // of a choice: each streams the reference beside its trials
  plan.seconds = (operations(batch) + (trials + kRounds) * operations(held_out)) /
                 measured_rate(config.hidden_size, chunk, precision, device);
  if (trials > 0)
    plan.memory_bytes += (trials + 1) * held_out.tokens() * config.hidden_size * bytes;
  return plan;
}

}  // namespace oscar
