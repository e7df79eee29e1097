#include "transform/orthonormal.hpp"

// Eigen's vector code sums in an order that depends on the build.
#define EIGEN_DONT_VECTORIZE
#define EIGEN_MPL2_ONLY
#include <Eigen/Core>
#include <Eigen/Householder>

namespace dr {
namespace {

using matrix = Eigen::Map<Eigen::MatrixXd>;
using column = Eigen::Map<Eigen::VectorXd>;

}  // namespace

void orthonormalise(const tall_matrix& m, double* scratch) {
  using strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
  const auto n = static_cast<Eigen::Index>(m.n), r = static_cast<Eigen::Index>(m.r);
  Eigen::Map<Eigen::MatrixXf, 0, strides> given(
      m.at, n, r, strides(static_cast<Eigen::Index>(m.column), static_cast<Eigen::Index>(m.row)));
  matrix a(scratch, n, r), q(scratch + n * r, n, r);
  column tau(scratch + 2 * n * r, r);
  double* const row = scratch + 2 * n * r + r;
  a = given.cast<double>();
  for (Eigen::Index k = 0; k < r; ++k) {
    double beta;
    a.col(k).tail(n - k).makeHouseholderInPlace(tau[k], beta);
    a.bottomRightCorner(n - k, r - k - 1).applyHouseholderOnTheLeft(a.col(k).tail(n - k - 1), tau[k], row);
  }
  q.setIdentity();
  for (Eigen::Index k = r; k-- > 0;)
    q.bottomRightCorner(n - k, r - k).applyHouseholderOnTheLeft(a.col(k).tail(n - k - 1), tau[k], row);
  given = q.cast<float>();
}

}  // namespace dr
