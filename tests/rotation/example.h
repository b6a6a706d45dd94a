#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "oscar/statistics/statistics.h"

namespace oscar::test {

/// Queries, keys and values of one layer, [token][head] rows, and the attention that they make.
struct Rows {
  std::vector<Matrix> q;  ///< [Q_heads][T,D]
  std::vector<Matrix> k;  ///< [KV_heads][T,D]
  std::vector<Matrix> v;  ///< [KV_heads][T,Dv]
};

inline Rows random_rows(int tokens, int q_heads, int kv_heads, int dim, int value_dim,
                        unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  const auto rows = [&](int columns) {
    Matrix x(tokens, columns), mixing(columns, columns);
    for (Eigen::Index i = 0; i < x.size(); ++i) x.data()[i] = normal(engine);
    for (Eigen::Index i = 0; i < mixing.size(); ++i) {
      mixing.data()[i] = normal(engine) * std::pow(0.9, static_cast<double>(i % columns));
    }
    return Matrix((x * mixing).array() + normal(engine));
  };
  Rows result;
  for (int h = 0; h < q_heads; ++h) result.q.push_back(rows(dim));
  for (int h = 0; h < kv_heads; ++h) result.k.push_back(rows(dim));
  for (int h = 0; h < kv_heads; ++h) result.v.push_back(rows(value_dim));
  return result;
}

/// Causal attention outputs of one query head, [T,Dv].
inline Matrix attend(const Matrix& q, const Matrix& k, const Matrix& v) {
  Matrix scores = q * k.transpose() / std::sqrt(static_cast<double>(q.cols()));
  for (Eigen::Index t = 0; t < scores.rows(); ++t) {
    const Eigen::Index seen = t + 1;
    scores.row(t).head(seen) =
        (scores.row(t).head(seen).array() - scores.row(t).head(seen).maxCoeff()).exp();
    scores.row(t).head(seen) /= scores.row(t).head(seen).sum();
    scores.row(t).tail(scores.cols() - seen).setZero();
  }
  return scores * v;
}

/// The sums of contract, section 5, straight from their definitions; every row is kept as a sample.
inline LayerStatistics statistics_of(const Rows& rows) {
  const auto kv_heads = rows.k.size();
  const std::size_t group = rows.q.size() / kv_heads;
  LayerStatistics layer = LayerStatistics::zeros(
      static_cast<int>(kv_heads), static_cast<int>(rows.q.size()),
      static_cast<int>(rows.k[0].cols()), static_cast<int>(rows.v[0].cols()));
  layer.tokens = rows.k[0].rows();
  for (std::size_t h = 0; h < kv_heads; ++h) {
    const Matrix &k = rows.k[h], &v = rows.v[h];
    for (std::size_t j = h * group; j < (h + 1) * group; ++j) {
      const Matrix output = attend(rows.q[j], k, v);
      layer.query_outer[h] += rows.q[j].transpose() * rows.q[j];
      layer.query_sum[h] += rows.q[j].colwise().sum().transpose();
      layer.output_outer[h] += output.transpose() * output;
    }
    layer.key_outer[h] = k.transpose() * k;
    layer.key_sum[h] = k.colwise().sum().transpose();
    layer.value_outer[h] = v.transpose() * v;
    layer.value_sum[h] = v.colwise().sum().transpose();
    Vector weights(k.rows());
    for (Eigen::Index t = 0; t < k.rows(); ++t)
      weights[t] = k.row(t) * layer.query_outer[h] * k.row(t).transpose();
    weights *= static_cast<double>(layer.tokens) / weights.sum();
    layer.weighted_value_outer[h] = v.transpose() * weights.asDiagonal() * v;
    const Matrix weight =
        Matrix::NullaryExpr(v.cols(), v.cols(), [](Eigen::Index i, Eigen::Index j) {
          return std::sin(static_cast<double>(3 * i * j + i * i + j));
        });
    layer.output_metric.emplace_back(weight.transpose() * weight +
                                     Matrix::Identity(v.cols(), v.cols()));
    layer.key_samples.push_back(k.cast<float>());
    layer.value_samples.push_back(v.cast<float>());
    MatrixF attention(k.rows(), 2);  // some that differs from row to row
    attention.col(0) = VectorF::LinSpaced(k.rows(), 0.5f, 2.0f);
    attention.col(1) = VectorF::LinSpaced(k.rows(), 3.0f, 0.1f);
    layer.sample_attention.push_back(attention);
  }
  return layer;
}

inline Statistics statistics_of(const std::map<int, Rows>& layers) {
  Statistics result;
  result.model = "a model";
  result.model_fingerprint = "weights";
  result.dataset_sha256 = "data";
  result.precision = "fp32";
  for (const auto& [id, rows] : layers) {
    result.layers.emplace(id, statistics_of(rows));
    result.tokens = rows.k[0].rows();
  }
  return result;
}

}  // namespace oscar::test
