#include <cmath>
#include <cstring>
#include <limits>

#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "oscar/core/float16.h"
#include "oscar/core/hash.h"
#include "oscar/core/json.h"
#include "oscar/core/mapped_file.h"
#include "oscar/core/progress.h"
#include "oscar/core/system.h"
#include "support.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

TEST(AtomicFile, AppearsWholeOrNotAtAll) {
  const test::TemporaryFolder folder;
  write_file(folder / "a", "first");
  {
    const AtomicFile file(folder / "a");
    write_file(file.temporary_path(), "second");
  }  // not committed
  EXPECT_EQ(read_file(folder / "a"), "first");
  AtomicFile file(folder / "a");
  write_file(file.temporary_path(), "third");
  file.commit();
  EXPECT_EQ(read_file(folder / "a"), "third");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(AtomicFile, RefusesWhatCannotBeWritten) {
  const test::TemporaryFolder folder;
  EXPECT_THROW_WITH(write_file(folder / "no/such/file", ""), InputError, "does not exist");
  EXPECT_THROW_WITH(refuse_existing(folder.path().parent_path(), false), InputError, "--force");
  refuse_existing(folder.path(), false);  // empty
  write_file(folder / "a", "content");
  EXPECT_THROW_WITH(refuse_existing(folder.path(), false), InputError, "exists already");
  refuse_existing(folder.path(), true);
}

TEST(AtomicFile, RemovesWhatKilledProcessesLeft) {
  const test::TemporaryFolder folder;
  write_file(folder / "kept", "x");
  write_file(folder / ".kept.123.partial", "half");
  remove_partial_files(folder.path());
  EXPECT_TRUE(fs::exists(folder / "kept"));
  EXPECT_FALSE(fs::exists(folder / ".kept.123.partial"));
}

TEST(MappedFile, MapsAndRefuses) {
  const test::TemporaryFolder folder;
  write_file(folder / "a", "mapped");
  MappedFile file(folder / "a");
  const MappedFile moved = std::move(file);
  EXPECT_EQ(std::memcmp(moved.bytes().data(), "mapped", 6), 0);
  moved.will_need(moved.bytes());
  moved.done_with(moved.bytes());
  EXPECT_EQ(static_cast<char>(moved.bytes()[5]), 'd');
  write_file(folder / "empty", "");
  EXPECT_THROW_WITH(MappedFile(folder / "empty"), InputError, "empty");
  EXPECT_THROW_WITH(MappedFile(folder.path()), InputError, "not a regular file");
  EXPECT_THROW_WITH(MappedFile(folder / "absent"), InputError, "cannot be opened");
}

TEST(Hash, KnownAnswers) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const test::TemporaryFolder folder;
  write_file(folder / "a", "abc");
  EXPECT_EQ(sha256_file(folder / "a"), sha256_hex("abc"));
  write_file(folder / "empty", "");
  EXPECT_EQ(sha256_file(folder / "empty"), sha256_hex(""));
}

TEST(Json, SaysWhereAndWhat) {
  EXPECT_THROW_WITH(parse_json("{\"a\": ", "file.json"), InputError,
                    "file.json: is not valid JSON");
  const Json json = parse_json(R"({"a": 1, "b": null, "c": "x"})", "file.json");
  EXPECT_EQ(require<int>(json, "a", "f"), 1);
  EXPECT_EQ(find<int>(json, "b", "f"), std::nullopt);
  EXPECT_EQ(find<int>(json, "absent", "f"), std::nullopt);
  EXPECT_THROW_WITH(require<int>(json, "absent", "f"), InputError, "\"absent\" is missing");
  EXPECT_THROW_WITH(find<int>(json, "c", "f"), InputError, "wrong type");
}

TEST(Float16, EveryHalfSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = half_to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value))));
    } else {
      ASSERT_EQ(float_to_half(value), half) << bits;
    }
  }
}

TEST(Float16, RoundsToNearestEven) {
  EXPECT_EQ(float_to_half(1.0f + 0x1p-11f), 0x3c00);  // a tie goes to the even neighbour
  EXPECT_EQ(float_to_half(1.0f + 3 * 0x1p-11f), 0x3c02);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);  // rounds to infinity
  EXPECT_EQ(float_to_half(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_half(0x1p-25f), 0x0000);
  EXPECT_EQ(float_to_half(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
  EXPECT_EQ(round_to_bfloat16(1.0f + 0x1p-8f), 1.0f);
  EXPECT_EQ(round_to_bfloat16(1.0f + 3 * 0x1p-8f), 1.0f + 0x1p-6f);
  EXPECT_TRUE(std::isnan(round_to_bfloat16(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isinf(round_to_bfloat16(std::numeric_limits<float>::max())));
}

TEST(Device, ParsesWords) {
  EXPECT_EQ(parse_device("cpu").name(), "cpu");
  EXPECT_THROW_WITH(parse_device("tpu"), InputError, "use auto, cpu, cuda");
  EXPECT_THROW_WITH(parse_device("cuda:99"), InputError, "cuda:99");
  EXPECT_THROW_WITH(parse_device("cuda:x"), InputError, "is not known");
  EXPECT_EQ(parse_device("auto").is_cuda(), cuda_device_count() > 0);
}

TEST(System, FormatsForPeople) {
  EXPECT_EQ(format_bytes(1536), "2 KiB");
  EXPECT_EQ(format_bytes(std::int64_t{5} << 30), "5.0 GiB");
  EXPECT_EQ(format_seconds(12.34), "12.3 s");
  EXPECT_EQ(format_seconds(200), "3 min 20 s");
  EXPECT_EQ(format_seconds(3720), "1 h 02 min");
  EXPECT_GT(peak_memory_bytes(), 1 << 20);
}

TEST(Progress, PrintsOneJsonObjectALine) {
  testing::internal::CaptureStderr();
  {
    Progress progress(Progress::Style::json, "testing", "layer", 2);
    progress.update(1, 10);
    progress.update(2, 10);
    progress.finish();
  }
  std::istringstream lines(testing::internal::GetCapturedStderr());
  std::vector<Json> parsed;
  for (std::string line; std::getline(lines, line);) parsed.push_back(Json::parse(line));
  ASSERT_EQ(parsed.size(), 3u);
  EXPECT_EQ(parsed[0].at("done"), 1);
  EXPECT_EQ(parsed[0].at("total"), 2);
  EXPECT_TRUE(parsed[2].at("finished").get<bool>());
  EXPECT_THROW_WITH(parse_progress_style("loud"), InputError, "\"loud\" is not known");
}

}  // namespace
}  // namespace oscar
