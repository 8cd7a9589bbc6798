// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/heap.h"

#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/jinja/operations.h"
#include "stepforge/jinja/unicode.h"

namespace stepforge::jinja {
namespace {

/// Comparing, printing and deleting recurse.
constexpr int kMaxValueDepth = 100;
/// Smaller dicts are searched linearly.
constexpr size_t kMinIndexed = 9;

size_t text_hash(std::string_view text) {
  return std::hash<std::string_view>()(text);
}

}  // namespace

int Heap::checked_depth(int inner) const {
  if (inner >= kMaxValueDepth) {
    fail_limit(format("lists and dicts are nested more than {} levels deep", kMaxValueDepth),
               "nest them less");
  }
  return inner + 1;
}

Value Heap::text(std::string bytes, bool safe) {
  budget_.allocate(bytes.size() + sizeof(Text));
  const int64_t length = count_code_points(bytes);
  return Value::object(Kind::string, std::make_shared<Text>(Text{std::move(bytes), length, safe}));
}

Value Heap::sequence(Kind kind, std::vector<Value> items) {
  budget_.allocate(items.size() * sizeof(Value) + sizeof(Sequence));
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  return Value::object(kind, std::make_shared<Sequence>(Sequence{std::move(items), checked_depth(depth)}));
}

Value Heap::list(std::vector<Value> items) {
  return sequence(Kind::list, std::move(items));
}

Value Heap::tuple(std::vector<Value> items) {
  return sequence(Kind::tuple, std::move(items));
}

Value Heap::dict(std::vector<std::pair<Value, Value>> items) {
  budget_.allocate(items.size() * (2 * sizeof(Value) + (items.size() < kMinIndexed ? 0 : 40)) + sizeof(Dict));
  Dict dict{{}, {}, 0};
  const bool indexed = items.size() >= kMinIndexed;
  int depth = 0;
  for (auto& [key, value] : items) {
    depth = std::max({depth, depth_of(key), depth_of(value)});
    if (const Value* known = find_in(budget_, dict, key)) {
      *const_cast<Value*>(known) = std::move(value);
      continue;
    }
    if (indexed) dict.index.emplace(hash_of(budget_, key), dict.items.size());
    dict.items.emplace_back(std::move(key), std::move(value));
  }
  dict.depth = checked_depth(depth);
  return Value::object(Kind::dict, std::make_shared<Dict>(std::move(dict)));
}

Value Heap::range(int64_t start, int64_t stop, int64_t step) {
  const __int128 span = step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const __int128 stride = step > 0 ? step : -static_cast<__int128>(step);
  const __int128 length = span <= 0 ? 0 : (span + stride - 1) / stride;
  constexpr int kMaxRange = 100'000;  // Jinja2's sandbox
  if (length > kMaxRange) fail(format("range() has more than {} numbers", kMaxRange), "use a smaller range");
  budget_.allocate(sizeof(Range));
  return Value::object(Kind::range,
                       std::make_shared<Range>(Range{start, stop, step, static_cast<int64_t>(length)}));
}

Value Heap::view(View::Of of, const Value& dict) {
  budget_.allocate(sizeof(View));
  checked_depth(dict.dict().depth);
  return Value::object(Kind::view, std::make_shared<View>(View{of, dict.shared_dict()}));
}

Value Heap::generator(Next next, int depth) {
  budget_.allocate(sizeof(Generator) + 64);
  return Value::object(Kind::generator,
                       std::make_shared<Generator>(Generator{std::move(next), checked_depth(depth)}));
}

Value Heap::undefined(std::string message) {
  budget_.allocate(message.size() + sizeof(UndefinedInfo));
  return Value::object(Kind::undefined, std::make_shared<UndefinedInfo>(UndefinedInfo{std::move(message)}));
}

Value Heap::method(const Value& self, const Method* method) {
  budget_.allocate(sizeof(BoundMethod));
  checked_depth(depth_of(self));
  return Value::object(Kind::method, std::make_shared<BoundMethod>(BoundMethod{self, method}));
}

Value Heap::from_json(const Json& json) {
  const Budget::Level level(budget_);
  budget_.step();
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        fail_limit(format("the variable {} needs more than 64 bits", number), "pass a smaller number");
      }
      return Value::integer(static_cast<int64_t>(number));
    }
    case Json::value_t::number_float:
      return Value::floating(json.get<double>());
    case Json::value_t::string:
      return text(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) items.push_back(from_json(item));
      return list(std::move(items));
    }
    case Json::value_t::object: {
      std::vector<std::pair<Value, Value>> items;
      for (const auto& [key, item] : json.items()) items.emplace_back(text(key), from_json(item));
      return dict(std::move(items));
    }
    default:
      return Value::none();
  }
}

const Value* find_in(Budget& budget, const Dict& dict, const Value& key) {
  if (dict.index.empty()) {
    hash_of(budget, key);  // an unhashable key is an error in an empty dict too
    for (const auto& [known, value] : dict.items) {
      if (equal(budget, known, key)) return &value;
    }
    return nullptr;
  }
  const auto [begin, end] = dict.index.equal_range(hash_of(budget, key));
  for (auto at = begin; at != end; ++at) {
    const auto& [known, value] = dict.items[at->second];
    if (equal(budget, known, key)) return &value;
  }
  return nullptr;
}

const Value* find_in(const Dict& dict, std::string_view key) {
  const auto is_key = [key](const Value& known) { return known.is(Kind::string) && known.text() == key; };
  if (dict.index.empty()) {
    for (const auto& [known, value] : dict.items) {
      if (is_key(known)) return &value;
    }
    return nullptr;
  }
  const auto [begin, end] = dict.index.equal_range(text_hash(key));
  for (auto at = begin; at != end; ++at) {
    if (is_key(dict.items[at->second].first)) return &dict.items[at->second].second;
  }
  return nullptr;
}

}  // namespace stepforge::jinja
