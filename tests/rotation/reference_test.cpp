/// Our fit against the released code's results (tests/fixtures/rotation/make_reference.py).

#include <gtest/gtest.h>

#include "oscar/core/json.h"
#include "oscar/linalg/eigh.h"
#include "oscar/rotation/fit.h"
#include "rotation/example.h"
#include "rotation/objectives/uresidual.h"
#include "support.h"

namespace oscar {
namespace {

constexpr double kTolerance = 2e-6;  // their files hold float32

struct Reference {
  Json json = read_json(test::fixture("rotation/reference.json"));
  int dim = json.at("dim").get<int>();
  test::Rows rows{heads("q", "q_heads"), heads("k", "kv_heads"), heads("v", "kv_heads")};

  std::vector<Matrix> heads(const char* name, const char* count) const {
    const auto values = json.at(name).get<std::vector<double>>();
    const auto tokens = json.at("tokens").get<int>(), number = json.at(count).get<int>();
    std::vector<Matrix> result(static_cast<std::size_t>(number), Matrix(tokens, dim));
    for (int t = 0, i = 0; t < tokens; ++t) {
      for (Matrix& head : result) {
        for (int j = 0; j < dim; ++j)
          head(t, j) = values[static_cast<std::size_t>(i++)] * json.at("unit").get<double>();
      }
    }
    return result;
  }

  const Json& file(const std::string& name) const { return json.at("files").at(name); }
  Matrix rotation(const std::string& name) const {
    const auto values = file(name).at("rotation").get<std::vector<double>>();
    return Eigen::Map<const Matrix>(values.data(), dim, dim);
  }
  Vector eigenvalues(const std::string& name) const {
    const auto values = file(name).at("eigenvalues").get<std::vector<double>>();
    return Eigen::Map<const Vector>(values.data(), dim);
  }
};

const Reference& reference() {
  static const Reference instance;
  return instance;
}

/// Largest difference between the columns of a and b, each up to its sign.
double column_difference(const Matrix& a, const Matrix& b) {
  double worst = 0;
  for (Eigen::Index j = 0; j < a.cols(); ++j) {
    worst = std::max(worst, std::min((a.col(j) - b.col(j)).cwiseAbs().maxCoeff(),
                                     (a.col(j) + b.col(j)).cwiseAbs().maxCoeff()));
  }
  return worst;
}

RotationPair our_fit(const std::string& key, const std::string& value, Composition composition) {
  return fit(test::statistics_of({{0, reference().rows}}),
             {key, value, Granularity::layer, composition}, Device{});
}

class ReferenceCompositions : public testing::TestWithParam<Composition> {};

TEST_P(ReferenceCompositions, AreOurs) {
  const std::string name = std::string("k_rotation_qqt_") + name_of(GetParam());
  const RotationSet ours = our_fit("qqt", "sst-surrogate", GetParam()).key;
  EXPECT_EQ(ours.objective, reference().file(name).at("objective").get<std::string>());
  const Matrix rotation = ours.layers.at(0).rotation[0].cast<double>(),
               theirs = reference().rotation(name);
  if (GetParam() == Composition::pbr || GetParam() == Composition::h_pbr) {
    EXPECT_LT((rotation - theirs).cwiseAbs().maxCoeff(), kTolerance);
    return;
  }
  const Vector values = reference().eigenvalues(name);
  EXPECT_LT(column_difference(decompose(GetParam(), rotation, values),
                              decompose(GetParam(), theirs, values)),
            kTolerance);
}

TEST_P(ReferenceCompositions, OfTheirEigenvectorsAreTheirs) {
  const Matrix u = reference().rotation("k_rotation_qqt_plain");
  const Vector values = reference().eigenvalues("k_rotation_qqt_plain");
  const Matrix theirs = reference().rotation(std::string("k_rotation_qqt_") + name_of(GetParam()));
  EXPECT_LT((compose(GetParam(), u, values) - theirs).cwiseAbs().maxCoeff(), kTolerance);
}

/// All but our own.
std::vector<Composition> published_compositions() {
  std::vector<Composition> result = all_compositions();
  std::erase(result, Composition::r_o);
  return result;
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceCompositions, testing::ValuesIn(published_compositions()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

struct Case {
  const char* preset;
  Side side;
  const char* file;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.file;
}

class ReferenceObjectives : public testing::TestWithParam<Case> {};

TEST_P(ReferenceObjectives, AreOurs) {
  FitOptions options;
  apply_objective(options, GetParam().preset);
  const RotationPair pair = our_fit(options.key, options.value, Composition::r_h_pbr);
  const RotationSet& set = GetParam().side == Side::key ? pair.key : pair.value;
  const std::string name = GetParam().file;
  EXPECT_EQ(set.objective, reference().file(name).at("objective").get<std::string>());
  const Vector values = reference().eigenvalues(name);
  const LayerRotation& ours = set.layers.at(0);
  EXPECT_LT((ours.eigenvalues[0].cast<double>() - values).cwiseAbs().maxCoeff(),
            1e-6 * values.maxCoeff());
  const Matrix u = decompose(Composition::r_h_pbr, ours.rotation[0].cast<double>(), values);
  const Matrix theirs = decompose(Composition::r_h_pbr, reference().rotation(name), values);
  EXPECT_LT(column_difference(u, theirs), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceObjectives,
                         testing::Values(Case{"reference", Side::key, "k_rotation_qqt_r_h_pbr"},
                                         Case{"reference", Side::value, "v_rotation_sst_r_h_pbr"},
                                         Case{"ktk-vtv", Side::key, "k_rotation_ktk_r_h_pbr"},
                                         Case{"ktk-vtv", Side::value, "v_rotation_vtv_r_h_pbr"}));

/// Its rotation depends on the signs of U through the residuals, so the parts are compared, fed
/// with the released code's own first rotation and basis.
void expect_uresidual(const std::vector<Matrix>& heads, const std::string& first,
                      const std::string& basis, const std::string& file) {
  Matrix residual = Matrix::Zero(reference().dim, reference().dim);
  for (const Matrix& head : heads)
    residual += residual_moment(head.cast<float>(), reference().rotation(first));
  residual /= static_cast<double>(heads.size());
  const Eigensystem importance{reference().eigenvalues(basis), reference().rotation(basis)};
  const Matrix ours = pair_residual_with_importance(eigh({residual}, Device{})[0], importance);
  const Matrix theirs = reference().rotation(file);
  EXPECT_LT(column_difference(ours * importance.vectors, theirs * importance.vectors), 1e-5);
  EXPECT_LT((importance.values - reference().eigenvalues(file)).cwiseAbs().maxCoeff(),
            1e-6 * importance.values.maxCoeff());
}

TEST(ReferenceUresidual, IsOurs) {
  expect_uresidual(reference().rows.k, "k_rotation_qqt_r_h_pbr", "k_rotation_qqt_plain",
                   "k_rotation_uresidual");
  expect_uresidual(reference().rows.v, "v_rotation_sst_r_h_pbr", "v_rotation_sst_plain",
                   "v_rotation_uresidual");
}

}  // namespace
}  // namespace oscar
