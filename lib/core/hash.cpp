#include "oscar/core/hash.h"

#include <openssl/evp.h>

#include <array>

#include "oscar/core/error.h"
#include "oscar/core/mapped_file.h"

namespace oscar {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  if (EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) != 1)
    fail("EVP_DigestInit_ex failed");
}

Sha256::~Sha256() = default;

Sha256& Sha256::update(std::span<const std::byte> bytes) {
  if (EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) != 1)
    fail("EVP_DigestUpdate failed");
  return *this;
}

Sha256& Sha256::update(std::string_view text) {
  return update(std::as_bytes(std::span(text.data(), text.size())));
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  if (EVP_DigestFinal_ex(context_->evp, digest.data(), &size) != 1)
    fail("EVP_DigestFinal_ex failed");
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::string sha256_hex(std::string_view text) {
  return Sha256().update(text).hex();
}
std::string sha256_hex(std::span<const std::byte> bytes) {
  return Sha256().update(bytes).hex();
}

std::string sha256_file(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error) &&
      std::filesystem::file_size(path, error) == 0) {
    return sha256_hex("");
  }
  return sha256_hex(MappedFile(path).bytes());
}

}  // namespace oscar
