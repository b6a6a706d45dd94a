#include "oscar/checkpoint/checkpoint_patch.h"

#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "support.h"

namespace oscar {
namespace {

constexpr const char* kNorm = "model.layers.1.input_layernorm.weight";

class Patch : public testing::Test {
 protected:
  std::filesystem::path path() const { return folder_ / "patch.safetensors"; }
  std::shared_ptr<const CheckpointPatch> open() const {
    return CheckpointPatch::open(path(), *checkpoint_);
  }
  void write(const PatchTensor& tensor) const { write_patch(path(), std::span(&tensor, 1)); }
  static PatchTensor norm(float value) { return {kNorm, {32}, std::vector<float>(32, value)}; }

  test::TemporaryFolder folder_;
  std::unique_ptr<Checkpoint> checkpoint_ =
      Checkpoint::open(test::fixture("checkpoint/tiny-llama"));
};

TEST_F(Patch, KeepsItsValuesInTheSmallestType) {
  for (const auto& [value, type] :
       {std::pair(1.5f, TensorType::bf16), std::pair(1.0f / 3, TensorType::f32)}) {
    write(norm(value));
    const auto patch = open();
    const TensorView* tensor = patch->find(kNorm);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->type, type);
    std::vector<float> read(32);
    read_rows(*tensor, 0, 32, read.data());
    EXPECT_EQ(read, std::vector<float>(32, value));
    EXPECT_EQ(patch->find("model.layers.0.input_layernorm.weight"), nullptr);
    EXPECT_EQ(patch->sha256().size(), 64u);
  }
}

TEST_F(Patch, RefusesWhatDoesNotFit) {
  PatchTensor tensor = norm(1);
  tensor.name = "model.layers.2.input_layernorm.weight";  // the model has two layers
  write(tensor);
  EXPECT_THROW_WITH(open(), InputError, "is not one of the decoder layers");
  tensor.name = "model.norm.weight";
  write(tensor);
  EXPECT_THROW_WITH(open(), InputError, "is not one of the decoder layers");
  tensor = norm(1);
  tensor.shape = {4, 8};
  write(tensor);
  EXPECT_THROW_WITH(open(), InputError, "has the shape [4, 8], but the model's is [32]");
  write_patch(path(), {});
  EXPECT_THROW_WITH(open(), InputError, "holds no tensors");
  write(norm(1));
  const std::string whole = read_file(path());
  write_file(path(), whole.substr(0, whole.size() - 1));
  EXPECT_THROW_WITH(open(), InputError, "incomplete download?");
}

}  // namespace
}  // namespace oscar
