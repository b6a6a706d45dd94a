#include "model/state_file.h"

#include <ATen/ATen.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "oscar/core/json.h"
#include "oscar/core/mapped_file.h"

namespace oscar {

namespace {

// A line of JSON, a newline, and the raw values.

std::span<const std::byte> raw(const at::Tensor& x) {
  return {static_cast<const std::byte*>(x.const_data_ptr()), static_cast<std::size_t>(x.nbytes())};
}

OrderedJson identity(const StreamState& state) {
  return {{"schema", "oscar-stream-state"},
          {"schema_version", 1},
          {"model_fingerprint", state.model_fingerprint},
          {"dataset_sha256", state.dataset_sha256},
          {"precision", state.precision},
          {"shape", state.hidden.sizes().vec()}};
}

}  // namespace

void save_state_file(const std::filesystem::path& path, const StreamState& state) {
  OrderedJson header = identity(state);
  header["next_layer"] = state.next_layer;
  header["sha256"] = sha256_hex(raw(state.hidden));
  const std::string line = header.dump() + "\n";
  AtomicFile file(path);
  std::ofstream out(file.temporary_path(), std::ios::binary);
  out << line;
  out.write(static_cast<const char*>(state.hidden.const_data_ptr()),
            static_cast<std::streamsize>(state.hidden.nbytes()));
  out.close();
  if (!out) fail_write(path, std::strerror(errno));
  file.commit();
}

StreamState load_state_file(const std::filesystem::path& path, const StreamState& expected) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto newline = text.substr(0, 65536).find('\n');
  if (newline == std::string_view::npos)
    fail_input("{}: is not a file of hidden states", path.string());
  const Json header = parse_json(text.substr(0, newline), path.string());
  const OrderedJson wanted = identity(expected);
  for (const auto& [key, value] : wanted.items()) {
    const Json found = header.contains(key) ? header.at(key) : Json();
    if (found != Json(value)) {
      fail_input("{}: belongs to another run: {} is {}, expected {}", path.string(), key,
                 found.dump(), value.dump());
    }
  }
  const auto data = bytes.subspan(newline + 1);
  StreamState state = expected;
  state.next_layer = require<int>(header, "next_layer", path.string());
  state.hidden = at::empty_like(expected.hidden);
  if (data.size() != state.hidden.nbytes() ||
      sha256_hex(data) != require<std::string>(header, "sha256", path.string())) {
    fail_input("{}: is damaged; remove it, or start over with --force", path.string());
  }
  std::memcpy(state.hidden.mutable_data_ptr(), data.data(), data.size());
  return state;
}

}  // namespace oscar
