#include "oscar/kvcache/mixed_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kvcache/backend.h"
#include "kvcache/checks.h"
#include "oscar/core/error.h"

namespace oscar {
namespace {

std::size_t product(std::initializer_list<std::int64_t> factors) {
  std::size_t result = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(result, static_cast<std::size_t>(factor), &result)) {
      fail_input("the mixed cache's size overflows; give it fewer pages, requests or layers");
    }
  }
  return result;
}

/// Memory where the cache lives, zeroed.
class Buffer {
 public:
  Buffer(std::size_t bytes, const Execution& where) : bytes_(bytes), where_(where) {
    if (where.device.is_cuda()) {
      data_ = cuda::allocate(bytes, where);
    } else {
      host_.assign((bytes + 63) / 64, Line{});
      data_ = host_.data();
    }
  }
  ~Buffer() {
    if (where_.device.is_cuda()) cuda::release(data_, where_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <typename T = void>
  T* at(std::size_t byte = 0) const {
    return reinterpret_cast<T*>(static_cast<char*>(data_) + byte);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::size_t bytes_;
  Execution where_;
  std::vector<Line> host_;
  void* data_ = nullptr;
};

/// One tensor of every layer.
struct Tensor {
  Tensor(int layers, std::size_t layer_bytes, const Execution& where)
      : stride(layer_bytes),
        buffer(product({layers, static_cast<std::int64_t>(layer_bytes)}), where) {}
  template <typename T = void>
  T* layer(int index) const {
    return buffer.at<T>(index * stride);
  }
  std::size_t stride;
  Buffer buffer;
};

}  // namespace

struct MixedCache::Memory {
  Tensor key_sink, value_sink, key_recent, value_recent;
  Tensor key_codes, key_scales, value_codes, value_scales;
  Buffer table;
  std::unique_ptr<Buffer> step, workspace;

  std::size_t bytes() const {
    std::size_t sum = table.bytes();
    for (const Tensor* tensor : {&key_sink, &value_sink, &key_recent, &value_recent, &key_codes,
                                 &key_scales, &value_codes, &value_scales}) {
      sum += tensor->buffer.bytes();
    }
    return sum;
  }
};

/// Where the tokens of a step go. Maps are of the step's rows unless they say otherwise.
struct MixedCache::Plan {
  bool decode = false;
  std::vector<RequestTiers> requests;
  std::int64_t rows = 0, longest = 0;
  std::vector<std::int32_t> demoted_from, demoted_to;  ///< places of the recent tier to INT2
  std::vector<std::int32_t> direct_from, direct_to;    ///< to INT2
  std::vector<std::int32_t> recent_from, recent_to, sink_from, sink_to;
  std::vector<std::int32_t> table_index, table_value;
  TokenMap demoted, direct, recent, sink;  ///< the same, where the cache lives
  const RequestTiers* tiers = nullptr;
};

void MixedCacheSettings::check() const {
  key.check();
  value.check();
  if (layers < 1 || kv_heads < 1 || kv_heads > checks::kMaxHeads || requests < 1) {
    fail_input("mixed cache: {} layers, {} KV heads and {} requests must each be at least 1",
               layers, kv_heads, requests);
  }
  if (sink < 0 || sink % kPageTokens != 0 || recent < 0 || recent % kPageTokens != 0) {
    fail_input("mixed cache: the windows sink {} and recent {} must be multiples of {}", sink,
               recent, kPageTokens);
  }
  if (tokens < 1 || tokens > checks::kMaxTokens || pages < 0 ||
      pages > checks::kMaxTokens / kPageTokens) {
    fail_input("mixed cache: {} tokens a request and {} pages; expected 1 to {} and 0 to {}",
               tokens, pages, checks::kMaxTokens, checks::kMaxTokens / kPageTokens);
  }
}

MixedCache::MixedCache(const MixedCacheSettings& settings, const Execution& where)
    : settings_(settings), where_(where) {
  settings_.check();
  const std::int64_t per_request = (settings_.tokens + kPageTokens - 1) / kPageTokens;
  if (settings_.pages == 0) settings_.pages = per_request * settings_.requests;
  const std::int64_t sinks = std::int64_t{settings_.sink} * settings_.requests;
  const std::int64_t recents = (std::int64_t{settings_.recent} + kPageTokens) * settings_.requests;
  const std::int64_t coded = settings_.pages * kPageTokens;
  if (std::max({sinks, recents, coded}) > checks::kMaxTokens) {
    fail_input("mixed cache: {} places in a tier, more than {}", std::max({sinks, recents, coded}),
               checks::kMaxTokens);
  }
  const auto tensor = [&](std::int64_t tokens, std::int64_t row_bytes) {
    return Tensor(settings_.layers, product({tokens, settings_.kv_heads, row_bytes}), where_);
  };
  const CodecSettings &key = settings_.key, &value = settings_.value;
  const auto scales = [](const CodecSettings& codec) {
    return static_cast<std::int64_t>(2 * codec.groups() * bytes_of(codec.scale_type));
  };
  memory_.reset(new Memory{
      tensor(sinks, 2 * key.dim), tensor(sinks, 2 * value.dim), tensor(recents, 2 * key.dim),
      tensor(recents, 2 * value.dim), tensor(coded, key.dim / 4), tensor(coded, scales(key)),
      tensor(coded, value.dim / 4), tensor(coded, scales(value)),
      Buffer(product({settings_.requests, per_request, 4}), where_), nullptr, nullptr});
  bytes_ = memory_->bytes();
  requests_.resize(settings_.requests);
  prompts_.assign(settings_.requests, -1);
  table_.assign(settings_.requests * per_request, 0);
  free_pages_.resize(settings_.pages);
  std::iota(free_pages_.rbegin(), free_pages_.rend(), 0);
  written_.assign(settings_.layers, true);
}

MixedCache::~MixedCache() = default;

int MixedCache::open(std::int64_t prompt_tokens) {
  if (prompt_tokens < 1 || prompt_tokens > settings_.tokens) {
    fail_input("mixed cache: a prompt of {} tokens; expected 1 to {}", prompt_tokens,
               settings_.tokens);
  }
  const auto free = std::find(prompts_.begin(), prompts_.end(), -1);
  if (free == prompts_.end()) {
    fail_input("mixed cache: all {} requests are taken; close one", settings_.requests);
  }
  *free = prompt_tokens;
  const int request = static_cast<int>(free - prompts_.begin());
  requests_[request] = {request, 0, 0, 0};
  return request;
}

const RequestTiers& MixedCache::tiers(int request) const {
  if (request < 0 || request >= settings_.requests || prompts_[request] < 0) {
    fail_input("mixed cache: request {} is not open", request);
  }
  return requests_[request];
}

void MixedCache::close(int request) {
  const RequestTiers& tiers = this->tiers(request);
  const std::size_t per_request = table_.size() / settings_.requests;
  for (int page = 0; page < tiers.coded / kPageTokens; ++page) {
    free_pages_.push_back(table_[request * per_request + page]);
  }
  prompts_[request] = -1;
}

void MixedCache::begin_decode(std::span<const int> requests) {
  begin(requests, std::vector<std::int64_t>(requests.size(), 1), true);
}

void MixedCache::begin_prefill(std::span<const int> requests,
                               std::span<const std::int64_t> tokens) {
  if (requests.size() != tokens.size()) {
    fail_input("mixed cache: {} requests but {} numbers of tokens", requests.size(), tokens.size());
  }
  begin(requests, tokens, false);
}

void MixedCache::begin(std::span<const int> requests, std::span<const std::int64_t> tokens,
                       bool decode) {
  const auto unwritten = std::find(written_.begin(), written_.end(), false);
  if (unwritten != written_.end()) {
    fail_input("mixed cache: layer {} was not written in the step before",
               unwritten - written_.begin());
  }
  // What each request becomes, before anything changes.
  std::vector<RequestTiers> after;
  std::int64_t new_pages = 0, rows = 0;
  std::vector<bool> named(settings_.requests, false);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    RequestTiers next = tiers(requests[i]);
    if (named[requests[i]]) fail_input("mixed cache: request {} is named twice", requests[i]);
    named[requests[i]] = true;
    if (tokens[i] < 1 || tokens[i] > settings_.tokens - next.length) {
      fail_input("mixed cache: request {} holds {} tokens; {} more are not from 1 to {}",
                 requests[i], next.length, tokens[i], settings_.tokens - next.length);
    }
    const auto prompt = static_cast<std::int32_t>(prompts_[requests[i]]);
    if (decode != (next.length >= prompt) || (!decode && next.length + tokens[i] > prompt)) {
      fail_input("mixed cache: request {} holds {} of its prompt's {} tokens; {} {} more is wrong",
                 requests[i], next.length, prompt, decode ? "decoding" : "prefilling", tokens[i]);
    }
    next.length += static_cast<std::int32_t>(tokens[i]);
    next.sink = std::min({next.length, prompt, settings_.sink});
    const int beyond = next.length - next.sink - next.coded - settings_.recent;
    if (beyond >= kPageTokens) next.coded += beyond / kPageTokens * kPageTokens;
    new_pages += (next.coded - requests_[requests[i]].coded) / kPageTokens;
    rows += tokens[i];
    after.push_back(next);
  }
  if (new_pages > free_pages()) {
    fail_input("mixed cache: the step needs {} pages, and {} are free; close a request", new_pages,
               free_pages());
  }
  if (rows > checks::kMaxTokens) fail_input("mixed cache: {} tokens in one step", rows);

  auto plan = std::make_unique<Plan>();
  plan->decode = decode;
  plan->requests = after;
  const std::int64_t per_request = static_cast<std::int64_t>(table_.size()) / settings_.requests;
  const int ring = settings_.recent + kPageTokens;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const RequestTiers &before = requests_[requests[i]], &next = after[i];
    const auto table = [&](std::int64_t page) { return next.slot * per_request + page; };
    for (int page = before.coded / kPageTokens; page < next.coded / kPageTokens; ++page) {
      table_[table(page)] = free_pages_.back();
      free_pages_.pop_back();
      plan->table_index.push_back(static_cast<std::int32_t>(table(page)));
      plan->table_value.push_back(table_[table(page)]);
    }
    const auto coded_place = [&](int index) {
      return table_[table(index / kPageTokens)] * kPageTokens + index % kPageTokens;
    };
    const auto recent_place = [&](int index) { return next.slot * ring + index % ring; };
    // Tokens that were recent and are no longer.
    for (int index = before.coded; index < std::min(next.coded, before.length - next.sink);
         ++index) {
      plan->demoted_from.push_back(recent_place(index));
      plan->demoted_to.push_back(coded_place(index));
    }
    for (int token = before.length; token < next.length; ++token) {
      const int index = token - next.sink;
      const auto row = static_cast<std::int32_t>(plan->rows + token - before.length);
      if (index < 0) {
        plan->sink_from.push_back(row);
        plan->sink_to.push_back(next.slot * settings_.sink + token);
      } else if (index < next.coded) {
        plan->direct_from.push_back(row);
        plan->direct_to.push_back(coded_place(index));
      } else {
        plan->recent_from.push_back(row);
        plan->recent_to.push_back(recent_place(index));
      }
    }
    plan->rows += tokens[i];
    plan->longest = std::max<std::int64_t>(plan->longest, next.length);
    requests_[requests[i]] = next;
  }
  upload_plan(*plan);
  plan_ = std::move(plan);
  written_.assign(settings_.layers, false);
}

void MixedCache::upload_plan(Plan& plan) {
  std::vector<std::int32_t> numbers;
  const auto put = [&](const std::vector<std::int32_t>& part) {
    const std::size_t at = numbers.size();
    numbers.insert(numbers.end(), part.begin(), part.end());
    return at;
  };
  const std::size_t at[] = {put(plan.demoted_from), put(plan.demoted_to),  put(plan.direct_from),
                            put(plan.direct_to),    put(plan.recent_from), put(plan.recent_to),
                            put(plan.sink_from),    put(plan.sink_to),     put(plan.table_index),
                            put(plan.table_value)};
  const std::size_t tiers = numbers.size();
  static_assert(sizeof(RequestTiers) == 4 * sizeof(std::int32_t));
  numbers.resize(tiers + 4 * plan.requests.size());
  std::memcpy(numbers.data() + tiers, plan.requests.data(),
              plan.requests.size() * sizeof(RequestTiers));
  const std::size_t bytes = numbers.size() * sizeof(std::int32_t);
  if (memory_->step == nullptr || memory_->step->bytes() < bytes) {
    memory_->step.reset();
    memory_->step = std::make_unique<Buffer>(2 * bytes, where_);
  }
  std::int32_t* data = memory_->step->at<std::int32_t>();
  const auto map = [&](int from, int to, const std::vector<std::int32_t>& list) {
    return TokenMap{data + at[from], data + at[to], static_cast<std::int64_t>(list.size())};
  };
  plan.demoted = map(0, 1, plan.demoted_from);
  plan.direct = map(2, 3, plan.direct_from);
  plan.recent = map(4, 5, plan.recent_from);
  plan.sink = map(6, 7, plan.sink_from);
  plan.tiers = reinterpret_cast<const RequestTiers*>(data + tiers);
  if (where_.device.is_cuda()) {
    cuda::upload(data, numbers.data(), bytes, where_);
    cuda::scatter({memory_->table.at<std::int32_t>(), data + at[8], data + at[9],
                   static_cast<std::int64_t>(plan.table_index.size())},
                  where_);
  } else {
    std::memcpy(data, numbers.data(), bytes);
    std::copy(table_.begin(), table_.end(), memory_->table.at<std::int32_t>());
  }
}

MixedCacheView MixedCache::view(int layer) const {
  if (layer < 0 || layer >= settings_.layers) {
    fail_input("mixed cache: layer {} of {}", layer, settings_.layers);
  }
  const MixedCacheSettings& s = settings_;
  const std::int64_t sinks = std::int64_t{s.sink} * s.requests;
  const std::int64_t recents = (std::int64_t{s.recent} + kPageTokens) * s.requests;
  const std::int64_t coded = s.pages * kPageTokens;
  const auto rows = [&](const Tensor& tensor, std::int64_t tokens, int dim) {
    return ConstRows::packed(tensor.layer(layer), ElementType::bf16, tokens, s.kv_heads, dim);
  };
  const auto codes = [&](const Tensor& bytes, const Tensor& scales, const CodecSettings& codec) {
    return CodedRows::packed(bytes.layer<std::uint8_t>(layer), scales.layer(layer), coded,
                             s.kv_heads, codec);
  };
  MixedCacheView view;
  view.key_sink = rows(memory_->key_sink, sinks, s.key.dim);
  view.value_sink = rows(memory_->value_sink, sinks, s.value.dim);
  view.key_recent = rows(memory_->key_recent, recents, s.key.dim);
  view.value_recent = rows(memory_->value_recent, recents, s.value.dim);
  view.key_coded = codes(memory_->key_codes, memory_->key_scales, s.key);
  view.value_coded = codes(memory_->value_codes, memory_->value_scales, s.value);
  view.key_codec = s.key;
  view.value_codec = s.value;
  view.sink_places = s.sink;
  view.ring_places = s.recent + kPageTokens;
  view.block_table = memory_->table.at<std::int32_t>();
  view.pages_per_slot = static_cast<std::int64_t>(table_.size()) / s.requests;
  if (plan_ != nullptr) {
    view.requests = plan_->tiers;
    view.count = static_cast<int>(plan_->requests.size());
    view.longest = plan_->longest;
  }
  return view;
}

void MixedCache::write(int layer, const ConstRows& keys, const ConstRows& values) {
  const MixedCacheView view = this->view(layer);
  if (plan_ == nullptr || written_[layer]) {
    fail_input("mixed cache: layer {} was written in this step already, or no step has begun",
               layer);
  }
  const Plan& plan = *plan_;
  checks::rows("the keys to cache", keys, plan.rows, settings_.kv_heads, settings_.key.dim);
  checks::rows("the values to cache", values, plan.rows, settings_.kv_heads, settings_.value.dim);
  const auto job = [&](const CodecSettings& codec, const ConstRows& from, bool key,
                       const TokenMap& map, bool bisect) {
    CodecSettings settings = codec;
    if (bisect) {
      settings.rule = codec.dim >= 64 ? ClipRule::bisect : ClipRule::exact;
      settings.levels = LevelRule::uniform;
    }
    const CodedRows coded = CodedRows::packed(
        (key ? memory_->key_codes : memory_->value_codes).layer<std::uint8_t>(layer),
        (key ? memory_->key_scales : memory_->value_scales).layer(layer), view.key_coded.tokens,
        settings_.kv_heads, codec);
    return EncodeJob{settings, from, coded, nullptr, map};
  };
  const CodecSettings &key = settings_.key, &value = settings_.value;
  // Demotion first: new tokens may take the places of the tokens that leave.
  const EncodeJob demotions[] = {job(key, view.key_recent, true, plan.demoted, plan.decode),
                                 job(value, view.value_recent, false, plan.demoted, plan.decode)};
  if (plan.demoted.count > 0) encode(demotions, where_);
  const EncodeJob direct[] = {job(key, keys, true, plan.direct, plan.decode),
                              job(value, values, false, plan.direct, plan.decode)};
  if (plan.direct.count > 0) encode(direct, where_);
  const auto copy = [&](const ConstRows& from, const ConstRows& to, const TokenMap& map) {
    const CopyJob copy_job{from,
                           {const_cast<void*>(to.data), to.type, to.tokens, to.heads, to.dim,
                            to.token_stride, to.head_stride},
                           map};
    where_.device.is_cuda() ? cuda::copy_rows(copy_job, where_) : cpu::copy_rows(copy_job);
  };
  copy(keys, view.key_recent, plan.recent);
  copy(values, view.value_recent, plan.recent);
  copy(keys, view.key_sink, plan.sink);
  copy(values, view.value_sink, plan.sink);
  written_[layer] = true;
}

void MixedCache::attend(int layer, const DecodeAttention& problem) {
  const MixedCacheView view = this->view(layer);
  if (plan_ == nullptr || !written_[layer]) {
    fail_input("mixed cache: layer {} has to be written before its attention", layer);
  }
  DecodeAttention own = problem;
  if (where_.device.is_cuda() && problem.workspace == nullptr) {
    const std::size_t bytes = std::min<std::size_t>(
        decode_workspace_bytes(view.count, problem.query.heads, settings_.value.dim),
        std::size_t{256} << 20);
    if (memory_->workspace == nullptr || memory_->workspace->bytes() < bytes) {
      memory_->workspace.reset();
      memory_->workspace = std::make_unique<Buffer>(bytes, where_);
    }
    own.workspace = memory_->workspace->at();
    own.workspace_bytes = memory_->workspace->bytes();
  }
  oscar::attend(view, own, where_);
}

std::size_t MixedCache::bytes_in_use() const {
  const CodecSettings &key = settings_.key, &value = settings_.value;
  const std::size_t exact = 2 * (static_cast<std::size_t>(key.dim) + value.dim);
  const std::size_t coded = key.bytes_per_row() + value.bytes_per_row();
  std::size_t sum = 0;
  for (int r = 0; r < settings_.requests; ++r) {
    if (prompts_[r] < 0) continue;
    const auto in_pages = static_cast<std::size_t>(requests_[r].coded);
    sum += in_pages * coded + (requests_[r].length - in_pages) * exact;
  }
  return sum * settings_.layers * settings_.kv_heads;
}

double MixedCache::effective_bits() const {
  double tokens = 0;
  for (int r = 0; r < settings_.requests; ++r) {
    if (prompts_[r] >= 0) tokens += requests_[r].length;
  }
  const double elements =
      tokens * settings_.layers * settings_.kv_heads * (settings_.key.dim + settings_.value.dim);
  return elements == 0 ? 0 : 8.0 * static_cast<double>(bytes_in_use()) / elements;
}

}  // namespace oscar
