#include "oscar/linalg/orthogonal.h"

#include <Eigen/QR>
#include <Eigen/SVD>
#include <cmath>
#include <limits>

#include "oscar/core/error.h"
#include "oscar/core/float16.h"

namespace oscar {

namespace {

/// An orthonormal basis [n,p] of the column space.
Eigen::MatrixXd orthonormal_basis(const Matrix& columns, const char* which) {
  if (columns.rows() == 0 || columns.cols() == 0) fail_input("the {} matrix is empty", which);
  const Eigen::ColPivHouseholderQR<Eigen::MatrixXd> qr(columns);
  if (qr.rank() < columns.cols()) {
    fail_input("the {} matrix has {} columns but rank {}: its columns are linearly dependent",
               which, columns.cols(), qr.rank());
  }
  return qr.householderQ() * Eigen::MatrixXd::Identity(columns.rows(), columns.cols());
}

}  // namespace

double orthogonality_error(const Matrix& rotation) {
  if (rotation.rows() != rotation.cols()) {
    fail_input("a rotation must be square; this one is {} x {}", rotation.rows(), rotation.cols());
  }
  if (!rotation.allFinite()) return std::numeric_limits<double>::infinity();
  const Matrix product = rotation * rotation.transpose();
  return (product - Matrix::Identity(rotation.rows(), rotation.cols())).cwiseAbs().maxCoeff();
}

double orthogonality_error(const MatrixF& rotation) {
  return orthogonality_error(Matrix(rotation.cast<double>()));
}

double duality_error(const MatrixF& write, const MatrixF& read) {
  if (write.rows() != write.cols() || read.rows() != read.cols() || write.rows() != read.rows()) {
    fail_input(
        "the two sides of a transform must be square and of one size; these are {} x {} and "
        "{} x {}",
        write.rows(), write.cols(), read.rows(), read.cols());
  }
  if (!write.allFinite() || !read.allFinite()) return std::numeric_limits<double>::infinity();
  const Matrix product = write.cast<double>() * read.cast<double>().transpose();
  return (product - Matrix::Identity(write.rows(), write.cols())).cwiseAbs().maxCoeff();
}

double duality_amplification(const MatrixF& write, const MatrixF& read) {
  const Matrix product =
      write.cast<double>().cwiseAbs() * read.cast<double>().cwiseAbs().transpose();
  return product.maxCoeff();
}

MatrixF round_to_bfloat16(const MatrixF& matrix) {
  return matrix.unaryExpr([](float value) { return round_to_bfloat16(value); });
}

Vector principal_angles(const Matrix& a, const Matrix& b) {
  if (a.rows() != b.rows()) {
    fail_input("subspaces of different spaces: columns of {} and of {} entries", a.rows(),
               b.rows());
  }
  Eigen::MatrixXd larger = orthonormal_basis(a, "first"), smaller = orthonormal_basis(b, "second");
  if (larger.cols() < smaller.cols()) larger.swap(smaller);
  const Eigen::MatrixXd common = larger.transpose() * smaller;
  const Eigen::MatrixXd rest = smaller - larger * common;
  const Vector cosines = Eigen::JacobiSVD<Eigen::MatrixXd>(common).singularValues();
  const Vector sines = Eigen::JacobiSVD<Eigen::MatrixXd>(rest).singularValues().reverse();
  Vector angles(cosines.size());
  for (Eigen::Index i = 0; i < angles.size(); ++i) {
    const bool small = cosines[i] * cosines[i] > 0.5;
    angles[i] = small ? std::asin(std::min(sines[i], 1.0)) : std::acos(std::min(cosines[i], 1.0));
  }
  return angles;
}

}  // namespace oscar
