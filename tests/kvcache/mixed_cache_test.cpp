#include "oscar/kvcache/mixed_cache.h"

#include "oscar/core/error.h"
#include "support.h"

namespace oscar::test {
namespace {

MixedCacheSettings small() {
  MixedCacheSettings s;
  s.kv_heads = 1;
  s.key = s.value = {64, 64, 0.96};
  s.sink = 8;
  s.recent = 16;
  s.requests = 2;
  s.tokens = 200;
  s.pages = 20;
  return s;
}

class Cache : public testing::Test {
 protected:
  void write(MixedCache& cache, std::int64_t tokens) {
    const ConstRows rows = ConstRows::packed(memory_.data(), ElementType::bf16, tokens, 1, 64);
    cache.write(0, rows, rows);
  }
  void prefill(MixedCache& cache, int request, std::int64_t tokens) {
    cache.begin_prefill(std::vector{request}, std::vector{tokens});
    write(cache, tokens);
  }
  std::vector<std::uint16_t> memory_ = std::vector<std::uint16_t>(200 * 64, 0x3f80);
};

TEST_F(Cache, CountsItsBytes) {
  MixedCache cache(small());
  // 20 pages of 8 tokens: 16 bytes of codes and 8 of scale and zero, K and V; sink 8 and ring 24
  // places of 128 bytes, K and V, two requests; block table of 25 entries, two requests.
  EXPECT_EQ(cache.bytes(), 20U * 8 * 2 * 24 + 2 * 2 * (8 + 24) * 128 + 2 * 25 * 4);
  EXPECT_EQ(cache.bytes_in_use(), 0U);
  const int request = cache.open(64);
  prefill(cache, request, 64);
  EXPECT_EQ(cache.tiers(request).coded, 40);
  EXPECT_EQ(cache.bytes_in_use(), 40U * 2 * 24 + 24 * 2 * 128);
  EXPECT_DOUBLE_EQ(cache.effective_bits(), 8.0 * (40 * 24 + 24 * 128) / (64 * 64));
}

/// Contract, section 2: 2.53 bits an element at 128K tokens with fp32 scales, 2.28 with 16 bits.
TEST_F(Cache, ComesToTheContractsBits) {
  for (const auto& [type, bits] : {std::pair{ScaleType::fp32, 2.53}, {ScaleType::bf16, 2.28}}) {
    MixedCacheSettings s;
    s.key = s.value = {128, 128, 0, ClipRule::exact, type};
    s.tokens = 131072;
    MixedCache cache(s);
    const int request = cache.open(s.tokens);
    const std::vector<std::uint16_t> rows(s.tokens * 128, 0x3f80);
    cache.begin_prefill(std::vector{request}, std::vector{s.tokens});
    const ConstRows view = ConstRows::packed(rows.data(), ElementType::bf16, s.tokens, 1, 128);
    cache.write(0, view, view);
    EXPECT_NEAR(cache.effective_bits(), bits, 0.006);
  }
}

TEST_F(Cache, GivesPagesBack) {
  MixedCache cache(small());
  for (int round = 0; round < 5; ++round) {
    const int a = cache.open(150);
    prefill(cache, a, 150);
    EXPECT_EQ(cache.free_pages(), 20 - 15);
    const int b = cache.open(100);
    EXPECT_THROW_WITH(cache.begin_prefill(std::vector{b}, std::vector<std::int64_t>{100}),
                      InputError, "needs 9 pages, and 5 are free");
    cache.close(a);
    prefill(cache, b, 100);
    cache.close(b);
    EXPECT_EQ(cache.free_pages(), 20);
  }
}

TEST_F(Cache, RefusesWrongSteps) {
  MixedCacheSettings settings = small();
  settings.pages = 0;  // enough
  MixedCache cache(settings);
  EXPECT_THROW_WITH(cache.tiers(0), InputError, "not open");
  EXPECT_THROW_WITH(cache.begin_decode(std::vector{7}), InputError, "not open");
  EXPECT_THROW_WITH(cache.open(0), InputError, "prompt of 0");
  EXPECT_THROW_WITH(cache.open(201), InputError, "prompt of 201");
  const int a = cache.open(10);
  EXPECT_THROW_WITH(write(cache, 1), InputError, "no step");
  EXPECT_THROW_WITH(cache.begin_decode(std::vector{a}), InputError, "decoding");
  EXPECT_THROW_WITH(cache.begin_prefill(std::vector{a}, std::vector<std::int64_t>{11}), InputError,
                    "prefilling");
  EXPECT_THROW_WITH(cache.begin_prefill(std::vector{a, a}, std::vector<std::int64_t>{1, 1}),
                    InputError, "twice");
  EXPECT_THROW_WITH(cache.begin_prefill(std::vector{a}, std::vector<std::int64_t>{1, 1}),
                    InputError, "numbers of tokens");
  cache.begin_prefill(std::vector{a}, std::vector<std::int64_t>{10});
  EXPECT_THROW_WITH(cache.begin_decode(std::vector{a}), InputError, "layer 0 was not written");
  EXPECT_THROW_WITH(cache.attend(0, {}), InputError, "has to be written");
  EXPECT_THROW_WITH(write(cache, 9), InputError, "expected [10");
  write(cache, 10);
  EXPECT_THROW_WITH(write(cache, 10), InputError, "already");
  EXPECT_THROW_WITH(cache.view(1), InputError, "layer 1");
  for (int i = 0; i < 190; ++i) {
    cache.begin_decode(std::vector{a});
    write(cache, 1);
  }
  EXPECT_THROW_WITH(cache.begin_decode(std::vector{a}), InputError, "holds 200 tokens");
  cache.open(5);
  EXPECT_THROW_WITH(cache.open(5), InputError, "all 2 requests are taken");
}

TEST_F(Cache, RefusesWhatItCannotBe) {
  const auto with = [](auto change) {
    MixedCacheSettings s = small();
    change(s);
    return s;
  };
  EXPECT_THROW_WITH(MixedCache(with([](auto& s) { s.sink = 4; })), InputError, "multiples of 8");
  EXPECT_THROW_WITH(MixedCache(with([](auto& s) { s.layers = 0; })), InputError, "0 layers");
  EXPECT_THROW_WITH(MixedCache(with([](auto& s) { s.tokens = 0; })), InputError, "0 tokens");
  EXPECT_THROW_WITH(MixedCache(with([](auto& s) { s.requests = 0x7fffffff; })), InputError,
                    "places in a tier");
}

}  // namespace
}  // namespace oscar::test
