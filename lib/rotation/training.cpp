// The only file of this room that knows torch: gradients come from its autograd.
#include "oscar/rotation/training.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <tuple>

#include "oscar/core/error.h"

namespace oscar {

namespace {

constexpr std::int64_t kRowsPerStep = 512;
constexpr double kLevels = 3;  ///< steps between the four levels of a two-bit code

/// Units of one shape as tensors.
struct Batch {
  std::vector<std::size_t> units;
  at::Tensor x, metric, weight;  // [U,H,n,D], [U,H,D,D], [U,H,n]
};

template <typename T>
at::Tensor stack(const std::vector<T>& parts) {
  std::vector<at::Tensor> tensors;
  for (const T& part : parts) {
    const Matrix wide = part.template cast<double>();
    tensors.push_back(
        at::from_blob(const_cast<double*>(wide.data()), {wide.rows(), wide.cols()}, at::kDouble)
            .to(at::kFloat));
  }
  return at::stack(tensors);
}

std::vector<Batch> batches(const std::vector<FittedMatrix>& fitted,
                           const std::vector<TrainingRows>& rows) {
  std::map<std::tuple<std::size_t, Eigen::Index, Eigen::Index>, std::vector<std::size_t>> shapes;
  for (std::size_t i = 0; i < fitted.size(); ++i) {
    if (rows[i].rows.empty() || rows[i].rows[0].rows() == 0) {
      fail_input(
          "training needs rows of keys and values, and the statistics hold none; calibrate "
          "again with --samples 1024");
    }
    shapes[{rows[i].rows.size(), rows[i].rows[0].rows(), fitted[i].rotation.rows()}].push_back(i);
  }
  std::vector<Batch> result;
  for (const auto& [shape, units] : shapes) {
    std::vector<at::Tensor> x, metric, weight;
    for (const std::size_t i : units) {
      std::vector<Matrix> stored, costs;
      for (std::size_t head = 0; head < rows[i].rows.size(); ++head) {
        const Matrix& read = fitted[i].read_side();
        stored.push_back(rows[i].rows[head].cast<double>() * fitted[i].rotation);
        costs.push_back(read.transpose() * rows[i].metric[head] * read);
      }
      x.push_back(stack(stored));
      metric.push_back(stack(costs));
      weight.push_back(stack(rows[i].weight).squeeze(-1));
    }
    result.push_back({units, at::stack(x), at::stack(metric), at::stack(weight)});
  }
  return result;
}

/// The codec of contract, section 2, with one group a row; rounding passes gradients through.
at::Tensor through_int2(const at::Tensor& row, double clip_ratio) {
  at::Tensor y = row;
  const std::int64_t dim = row.size(-1);
  if (clip_ratio > 0) {
    const auto index =
        std::min(static_cast<std::int64_t>(clip_ratio * static_cast<double>(dim)), dim - 1);
    const at::Tensor limit =
        std::get<0>(at::sort(row.detach().abs(), -1)).slice(-1, index, index + 1);
    y = at::maximum(at::minimum(y, limit), -limit);
  }
  const at::Tensor low = y.amin(-1, true);
  const at::Tensor scale = (y.amax(-1, true) - low).clamp_min(1e-8) / kLevels;
  const at::Tensor place = (y - low) / scale;
  const at::Tensor code = place + ((place + 0.5).floor().clamp(0, kLevels) - place).detach();
  return code * scale + low;
}

/// Cayley's map of a skew-symmetric matrix onto a rotation: (I + A)⁻¹ (I - A), A = P - Pᵀ.
at::Tensor rotation_of(const at::Tensor& parameter) {
  const at::Tensor skew = parameter - parameter.transpose(-1, -2);
  const at::Tensor one = at::eye(parameter.size(-1), parameter.options());
  return at::linalg_solve(one + skew, one - skew);
}

/// Adam's moments of one parameter.
class Adam {
 public:
  explicit Adam(const at::Tensor& parameter)
      : mean_(at::zeros_like(parameter)), square_(at::zeros_like(parameter)) {}

  void step(at::Tensor& parameter, double rate) {
    constexpr double kMean = 0.9, kSquare = 0.999, kTiny = 1e-8;
    const at::NoGradGuard no_gradient;
    const at::Tensor gradient = parameter.grad();
    ++steps_;
    mean_.mul_(kMean).add_(gradient, 1 - kMean);
    square_.mul_(kSquare).addcmul_(gradient, gradient, 1 - kSquare);
    const at::Tensor spread = (square_ / (1 - std::pow(kSquare, steps_))).sqrt().add_(kTiny);
    parameter.addcdiv_(mean_, spread, -rate / (1 - std::pow(kMean, steps_)));
    parameter.mutable_grad().reset();
  }

 private:
  at::Tensor mean_, square_;
  int steps_ = 0;
};

/// The trained factors [U,D,D] in float64 on the CPU.
at::Tensor train_batch(const Batch& batch, const at::Device& where, double clip_ratio,
                       const TrainingOptions& options) {
  const at::Tensor x = batch.x.to(where), metric = batch.metric.to(where),
                   weight = batch.weight.to(where);
  const at::AutoGradMode with_gradients(true);
  at::Tensor parameter = at::zeros({x.size(0), x.size(-1), x.size(-1)}, x.options());
  parameter.set_requires_grad(true);
  Adam adam(parameter);
  const auto cost_of = [&](const at::Tensor& error, const at::Tensor& weights) {
    return ((at::matmul(error, metric) * error).sum(-1) * weights).mean({1, 2});
  };
  const at::Tensor unit_cost = cost_of(x, weight).clamp_min(1e-30);
  const std::int64_t strides = std::max<std::int64_t>(1, x.size(2) / kRowsPerStep);
  for (int step = 0; step < options.steps; ++step) {
    const at::Tensor rows = x.slice(2, step % strides, x.size(2), strides);
    const at::Tensor turn = rotation_of(parameter).unsqueeze(1);
    const at::Tensor y = at::matmul(rows, turn);
    const at::Tensor error = at::matmul(through_int2(y, clip_ratio) - y, turn.transpose(-1, -2));
    const at::Tensor weights = weight.slice(2, step % strides, x.size(2), strides);
    (cost_of(error, weights) / unit_cost).sum().backward();
    const double phase = std::numbers::pi * step / options.steps;
    adam.step(parameter, options.learning_rate * (1 + std::cos(phase)) / 2);
  }
  const at::NoGradGuard no_gradient;
  return rotation_of(parameter.detach().to(at::kCPU, at::kDouble)).contiguous();
}

}  // namespace

void train(std::vector<FittedMatrix>& fitted, const std::vector<TrainingRows>& rows,
           double clip_ratio, const TrainingOptions& options, const Device& device) {
  const at::Device where = device.is_cuda()
                               ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device.index))
                               : at::Device(at::kCPU);
  for (const Batch& batch : batches(fitted, rows)) {
    const at::Tensor turns = train_batch(batch, where, clip_ratio, options);
    const auto dim = turns.size(-1);
    for (std::size_t i = 0; i < batch.units.size(); ++i) {
      FittedMatrix& matrix = fitted[batch.units[i]];
      const Matrix turn = Eigen::Map<const Matrix>(
          turns[static_cast<std::int64_t>(i)].const_data_ptr<double>(), dim, dim);
      matrix.rotation *= turn;
      if (matrix.read.size() > 0) matrix.read *= turn;
    }
  }
}

}  // namespace oscar
