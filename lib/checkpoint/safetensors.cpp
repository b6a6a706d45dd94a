#include "checkpoint/safetensors.h"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "checkpoint/byte_reader.h"
#include "checkpoint/tensor_type.h"
#include "oscar/core/json.h"

namespace oscar {

namespace {

constexpr std::uint64_t kLargestHeader = 100u << 20;  // as the safetensors library

/// Parses the header and refuses names that are there twice, which JSON parsers keep silent about.
Json parse_header(std::string_view text, const std::string& source) {
  std::set<std::string> names;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth == 1 && event == Json::parse_event_t::key &&
        !names.insert(parsed.get<std::string>()).second) {
      fail_input("{}: the tensor {} is there twice", source, parsed.get<std::string>());
    }
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const nlohmann::json::exception& error) {
    fail_input("{}: the header is not valid JSON ({})", source, error.what());
  }
}

std::optional<TensorType> element_type(const std::string& word) {
  if (word == "F32") return TensorType::f32;
  if (word == "F16") return TensorType::f16;
  if (word == "BF16") return TensorType::bf16;
  return std::nullopt;
}

struct Extent {
  std::uint64_t begin, end;
  std::string name;
};

void check_overlap(std::vector<Extent> extents, const std::string& source) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin < extents[i - 1].end) {
      fail_input("{}: the tensors {} and {} overlap", source, extents[i - 1].name, extents[i].name);
    }
  }
}

}  // namespace

std::map<std::string, TensorView> read_safetensors(const MappedFile& file,
                                                   std::map<std::string, std::string>& skipped) {
  const std::string source = file.path().string();
  ByteReader reader(file.bytes(), source);
  const auto header_size = reader.number<std::uint64_t>();
  if (header_size > kLargestHeader) {
    fail_input("{}: claims a header of {} bytes; it is not a safetensors file", source,
               header_size);
  }
  const auto header_bytes = reader.take(header_size);
  const Json header = parse_header(
      {reinterpret_cast<const char*>(header_bytes.data()), header_bytes.size()}, source);
  if (!header.is_object()) fail_input("{}: the header is not a JSON object", source);
  const auto data = file.bytes().subspan(reader.position());

  std::map<std::string, TensorView> tensors;
  std::vector<Extent> extents;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::string where = source + ": the tensor " + name;
    const auto word = require<std::string>(entry, "dtype", where);
    const auto offsets = require<std::vector<std::uint64_t>>(entry, "data_offsets", where);
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      fail_input("{}: the data_offsets are impossible", where);
    if (offsets[1] > data.size()) {
      fail_input("{} ends at byte {} of the data, but the file has {}; incomplete download?", where,
                 offsets[1], data.size());
    }
    if (offsets[0] < offsets[1]) extents.push_back({offsets[0], offsets[1], name});
    const auto type = element_type(word);
    if (!type) {
      skipped[name] = word;
      continue;
    }
    TensorView tensor;
    tensor.name = name;
    tensor.type = *type;
    tensor.shape = require<std::vector<std::int64_t>>(entry, "shape", where);
    const std::uint64_t size = bytes_of_tensor(*type, tensor.shape, where);
    if (size != offsets[1] - offsets[0]) {
      fail_input("{}: {} of shape [{}] takes {} bytes, but the header gives it {}", where, word,
                 fmt::join(tensor.shape, ", "), size, offsets[1] - offsets[0]);
    }
    tensor.data = data.subspan(offsets[0], size);
    tensors.emplace(name, std::move(tensor));
  }
  check_overlap(std::move(extents), source);
  return tensors;
}

}  // namespace oscar
