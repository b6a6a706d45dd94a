#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "oscar/core/device.h"

namespace oscar::test {

/// A folder that the build knows, or the environment: test programs may run on another machine than
/// the one that built them.
inline std::filesystem::path folder(const char* variable, const char* built_in) {
  const char* value = std::getenv(variable);
  return value != nullptr ? value : built_in;
}

/// A file of tests/fixtures.
inline std::filesystem::path fixture(const std::string& name) {
  return folder("OSCAR_FIXTURES", OSCAR_FIXTURES) / name;
}

/// A file of the data folder beside the checkout; a test that needs it says so and is skipped
/// without it.
inline std::filesystem::path shared(const std::string& name) {
  return folder("OSCAR_SHARED", OSCAR_SHARED) / name;
}

/// Writes a file without waiting for the disk, for tests that write thousands.
inline void write_quickly(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// A fresh folder, removed at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "oscar-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace oscar::test

/// Skips the test with a reason when a file is not there.
#define OSCAR_NEEDS(path)                                                   \
  do {                                                                      \
    if (!std::filesystem::exists(path)) {                                   \
      GTEST_SKIP() << "needs " << (path).string() << ", which is not here"; \
    }                                                                       \
  } while (false)

/// Skips the test on a machine without a CUDA device.
#define OSCAR_NEEDS_CUDA()                                                        \
  do {                                                                            \
    if (::oscar::cuda_device_count() == 0) GTEST_SKIP() << "needs a CUDA device"; \
  } while (false)

/// Expects an exception of this type whose message contains this text.
#define EXPECT_THROW_WITH(statement, exception, text)                       \
  do {                                                                      \
    try {                                                                   \
      statement;                                                            \
      ADD_FAILURE() << "expected " #exception " with \"" << (text) << "\""; \
    } catch (const exception& error_) {                                     \
      EXPECT_NE(std::string(error_.what()).find(text), std::string::npos)   \
          << "message: " << error_.what();                                  \
    }                                                                       \
  } while (false)
