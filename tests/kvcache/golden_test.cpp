#include <cstring>
#include <fstream>

#include "device_memory.h"
#include "run_codec.h"
#include "support.h"
#include "targets.h"

namespace oscar::test {
namespace {

/// tests/fixtures/kvcache/make_int2_golden.py describes the file.
struct GoldenCase {
  CodecSettings settings;
  std::vector<std::uint16_t> rows;
  std::vector<float> thresholds, scales, zeros;
  std::vector<std::uint8_t> packed;

  /// scales_zeros as the cache holds them in fp32.
  std::vector<std::uint8_t> scales_zeros() const {
    std::vector<float> pairs;
    for (std::size_t i = 0; i < scales.size(); ++i)
      pairs.insert(pairs.end(), {scales[i], zeros[i]});
    std::vector<std::uint8_t> bytes(pairs.size() * 4);
    std::memcpy(bytes.data(), pairs.data(), bytes.size());
    return bytes;
  }
};

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : file_(path, std::ios::binary) {
    file_.exceptions(std::ios::failbit | std::ios::badbit);
  }
  template <typename T>
  T number() {
    return numbers<T>(1)[0];
  }
  template <typename T>
  std::vector<T> numbers(std::size_t count) {
    std::vector<T> values(count);
    file_.read(reinterpret_cast<char*>(values.data()),
               static_cast<std::streamsize>(count * sizeof(T)));
    return values;
  }

 private:
  std::ifstream file_;
};

std::vector<GoldenCase> golden_cases() {
  Reader file(fixture("kvcache/int2_golden.bin"));
  file.numbers<char>(8);
  struct RowSet {
    std::uint32_t count, dim;
    std::vector<std::uint16_t> bits;
  };
  std::vector<RowSet> sets(file.number<std::uint32_t>());
  for (RowSet& set : sets) {
    set.count = file.number<std::uint32_t>();
    set.dim = file.number<std::uint32_t>();
    set.bits = file.numbers<std::uint16_t>(std::size_t{set.count} * set.dim);
  }
  std::vector<GoldenCase> cases(file.number<std::uint32_t>());
  for (GoldenCase& golden : cases) {
    const RowSet& set = sets.at(file.number<std::uint32_t>());
    golden.settings.dim = static_cast<int>(set.dim);
    golden.settings.group = static_cast<int>(file.number<std::uint32_t>());
    golden.settings.rule = file.number<std::uint32_t>() == 0 ? ClipRule::exact : ClipRule::bisect;
    golden.settings.clip_ratio = file.number<double>();
    golden.rows = set.bits;
    const std::size_t groups = std::size_t{set.count} * golden.settings.groups();
    golden.thresholds = file.numbers<float>(set.count);
    golden.scales = file.numbers<float>(groups);
    golden.zeros = file.numbers<float>(groups);
    golden.packed = file.numbers<std::uint8_t>(std::size_t{set.count} * set.dim / 4);
  }
  return cases;
}

class Golden : public testing::TestWithParam<GoldenCase> {
 protected:
  void expect_equal(const Device& device) {
    const GoldenCase& golden = GetParam();
    const Encoded expected{golden.packed, golden.scales_zeros(), golden.thresholds};
    EXPECT_EQ(run_encode(device, golden.settings, golden.rows, 1), expected) << "from bf16 rows";
    EXPECT_EQ(run_encode(device, golden.settings, from_bfloat16(golden.rows), 1), expected)
        << "from fp32 rows";
  }
};

void PrintTo(const GoldenCase& golden, std::ostream* out) {
  *out << "dim " << golden.settings.dim << ", group " << golden.settings.group << ", "
       << name_of(golden.settings.rule) << " " << golden.settings.clip_ratio;
}

TEST_P(Golden, CpuEqualsKnownAnswers) {
  for (const std::int64_t target : cpu_targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const WithTarget limit(target);
    expect_equal(kCpu);
  }
}

TEST_P(Golden, CudaEqualsKnownAnswers) {
  OSCAR_NEEDS_CUDA();
  expect_equal(kCuda);
}

INSTANTIATE_TEST_SUITE_P(Int2, Golden, testing::ValuesIn(golden_cases()));

TEST(GoldenFile, HoldsThirtyCases) {
  EXPECT_EQ(golden_cases().size(), 30U);
}

}  // namespace
}  // namespace oscar::test
