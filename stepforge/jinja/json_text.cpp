// SPDX-License-Identifier: Apache-2.0
// tojson: the text that Python's json.dumps writes.
#include <algorithm>
#include <cmath>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/formatting.h"
#include "stepforge/jinja/operations.h"

namespace stepforge::jinja {
namespace {

class JsonPrinter {
 public:
  JsonPrinter(Heap& heap, const JsonStyle& style) : heap_(heap), style_(style) {}
  std::string result;

  void value(const Value& value, int depth) {
    const Budget::Level level(heap_.budget());
    heap_.budget().step();
    switch (value.kind()) {
      case Kind::list:
      case Kind::tuple:
        return list(value.items(), depth);
      case Kind::dict:
        return dict(value.dict(), depth);
      case Kind::string:
        return quoted(value.text());
      default:
        write(plain(value));
    }
  }

 private:
  static std::string plain(const Value& value) {
    switch (value.kind()) {
      case Kind::none:
        return "null";
      case Kind::boolean:
        return value.boolean() ? "true" : "false";
      case Kind::integer:
        return std::to_string(value.integer());
      case Kind::floating:
        if (std::isnan(value.floating())) return "NaN";
        if (std::isinf(value.floating())) return value.floating() < 0 ? "-Infinity" : "Infinity";
        return float_text(value.floating());
      default:
        fail(format("{} cannot become JSON", type_name(value)),
             "pass lists, dicts, strings, numbers, booleans or none to tojson");
    }
  }

  /// Counts the bytes: the template chooses the length of separators and indents.
  void write(std::string_view text) {
    heap_.budget().allocate(text.size());
    result += text;
  }

  void new_line(int depth) {
    if (!style_.indented) return;
    result += '\n';
    for (int i = 0; i < depth; ++i) write(style_.indent);
  }

  void list(const std::vector<Value>& items, int depth) {
    if (items.empty()) {
      result += "[]";
      return;
    }
    result += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) write(style_.item_separator);
      new_line(depth + 1);
      value(items[i], depth + 1);
    }
    new_line(depth);
    result += ']';
  }

  void dict(const Dict& dict, int depth) {
    if (dict.items.empty()) {
      result += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> members;
    for (const auto& member : dict.items) members.push_back(&member);
    if (style_.sort_keys) {
      std::stable_sort(members.begin(), members.end(), [&](const auto* left, const auto* right) {
        return less(heap_, left->first, right->first);
      });
    }
    result += '{';
    for (size_t i = 0; i < members.size(); ++i) {
      if (i > 0) write(style_.item_separator);
      new_line(depth + 1);
      key(members[i]->first);
      write(style_.key_separator);
      value(members[i]->second, depth + 1);
    }
    new_line(depth);
    result += '}';
  }

  void key(const Value& key) {
    if (key.is(Kind::string)) return quoted(key.text());
    if (!key.is_number() && !key.is(Kind::none))
      fail(format("a key of type {} cannot become JSON", type_name(key)), "use strings as keys");
    quoted(plain(key));
  }

  void quoted(std::string_view text) {
    const size_t before = result.size();
    result += '"';
    for (size_t at = 0; at < text.size();) {
      const size_t length = utf8_sequence_length(text.substr(at));
      character(decode_code_point(text.substr(at)), text.substr(at, length));
      at += length;
    }
    result += '"';
    heap_.budget().allocate(result.size() - before);
  }

  void character(char32_t c, std::string_view bytes) {
    static constexpr std::string_view kPlain = "\"\\\n\r\t\f\b";
    static constexpr std::string_view kLetters = "\"\\nrtfb";
    const size_t i = c < 0x80 ? kPlain.find(static_cast<char>(c)) : std::string_view::npos;
    if (i != std::string_view::npos) {
      (result += '\\') += kLetters[i];
    } else if (c < 0x20 || (style_.ensure_ascii && c > 0x7E && c < 0x10000)) {
      result += format("\\u{:04x}", static_cast<uint32_t>(c));
    } else if (style_.ensure_ascii && c >= 0x10000) {
      const auto offset = static_cast<uint32_t>(c) - 0x10000;
      result += format("\\u{:04x}\\u{:04x}", 0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF));
    } else {
      result += bytes;
    }
  }

  Heap& heap_;
  const JsonStyle& style_;
};

}  // namespace

std::string json_text(Heap& heap, const Value& value, const JsonStyle& style) {
  JsonPrinter printer(heap, style);
  printer.value(value, 0);
  return std::move(printer.result);
}

}  // namespace stepforge::jinja
