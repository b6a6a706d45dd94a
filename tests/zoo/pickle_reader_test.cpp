#include "zoo/pickle_reader.h"

#include <random>

#include "oscar/core/error.h"
#include "support.h"
#include "zoo/pickle_writer.h"

namespace oscar::pickle {
namespace {

using namespace std::string_literals;

std::string sample() {
  Writer out;
  out.begin_dict();
  out.string("small");
  out.integer(-3);
  out.string("large");
  out.integer(std::int64_t{1} << 40);
  out.string("flag");
  out.boolean(true);
  out.string("tensor");
  out.tensor(5, {2, 3});
  out.end_dict();
  return out.finish();
}

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(PickleReader, ReadsWhatTheWriterWrote) {
  const std::string program = sample();
  const Reader reader(bytes(program), "test");
  const auto* dict = reader.root().as<Dict>();
  ASSERT_NE(dict, nullptr);
  EXPECT_EQ(*dict->find("small")->as<std::int64_t>(), -3);
  EXPECT_EQ(*dict->find("large")->as<std::int64_t>(), std::int64_t{1} << 40);
  EXPECT_TRUE(*dict->find("flag")->as<bool>());
  const auto* tensor = dict->find("tensor")->as<Tensor>();
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->storage.key, "5");
  EXPECT_EQ(tensor->storage.elements, 6);
  EXPECT_EQ(tensor->strides, (std::vector<std::int64_t>{3, 1}));
  EXPECT_EQ(dict->find("absent"), nullptr);
}

TEST(PickleReader, RefusesGlobalsThatCouldRunCode) {
  const std::string program =
      "\x80\x02"
      "cos\nsystem\n(X\x02\x00\x00\x00lstR."s;
  EXPECT_THROW_WITH(Reader(bytes(program), "test"), InputError, "os.system");
}

TEST(PickleReader, SurvivesAnyProgram) {
  const std::string whole = sample();
  std::mt19937 random(3);
  for (int i = 0; i < 50000; ++i) {
    std::string program = whole;
    for (unsigned n = random() % 6 + 1; n-- > 0;)
      program[random() % program.size()] = static_cast<char>(random());
    if (i % 4 == 0) program.resize(random() % program.size());
    try {
      const Reader reader(bytes(program), "test");
    } catch (const InputError&) {  // the only way in which a bad program may end
    }
  }
}

}  // namespace
}  // namespace oscar::pickle
