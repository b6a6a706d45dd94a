#pragma once

#include <Eigen/Core>

namespace oscar {

/// Dense matrices and vectors in row-major order, the order of the files and of the kernels.
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;
using MatrixF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using VectorF = Eigen::VectorXf;

}  // namespace oscar
