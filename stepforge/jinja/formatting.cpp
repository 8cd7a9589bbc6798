// SPDX-License-Identifier: Apache-2.0
// str and repr.
#include "stepforge/jinja/formatting.h"

#include <charconv>
#include <cmath>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/unicode.h"

namespace stepforge::jinja {

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string result;
  if (text.starts_with('-')) {
    result = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  int exponent = 0;
  const std::string_view exponent_text = text.substr(text[e + 1] == '+' ? e + 2 : e + 1);
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    result += digits.substr(0, 1);
    if (digits.size() > 1) result += "." + digits.substr(1);
    return result + format("e{}{:02}", exponent < 0 ? "-" : "+", std::abs(exponent));
  }
  if (exponent < 0) return result + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return result + digits + std::string(whole - digits.size(), '0') + ".0";
  return result + digits.substr(0, whole) + "." + digits.substr(whole);
}

namespace {

class Printer {
 public:
  explicit Printer(Heap& heap) : heap_(heap) {}
  std::string result;

  void repr(const Value& value) {
    const Budget::Level level(heap_.budget());
    const size_t before = result.size();
    switch (value.kind()) {
      case Kind::missing:
      case Kind::undefined:
        result += "Undefined";
        break;
      case Kind::none:
        result += "None";
        break;
      case Kind::boolean:
        result += value.boolean() ? "True" : "False";
        break;
      case Kind::integer:
        result += std::to_string(value.integer());
        break;
      case Kind::floating:
        result += float_text(value.floating());
        break;
      case Kind::string:
        quoted(value.text());
        break;
      case Kind::list:
        return items('[', value.items(), ']');
      case Kind::tuple:
        return items('(', value.items(), ')');
      case Kind::dict:
        return dict(value.dict());
      default:
        fail_unsupported(format("printing a {}", type_name(value)),
                         "call it, or convert it with | list or | join");
    }
    heap_.budget().step();
    heap_.budget().allocate(result.size() - before);
  }

 private:
  void quoted(std::string_view text) {
    const bool double_quotes =
        text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
    const char quote = double_quotes ? '"' : '\'';
    result += quote;
    for (size_t at = 0; at < text.size();) {
      const size_t length = utf8_sequence_length(text.substr(at));
      const char32_t c = decode_code_point(text.substr(at));
      if (c == static_cast<char32_t>(quote) || c == '\\')
        (result += '\\') += static_cast<char>(c);
      else if (c == '\n')
        result += "\\n";
      else if (c == '\r')
        result += "\\r";
      else if (c == '\t')
        result += "\\t";
      else if (is_printable(c))
        result += text.substr(at, length);
      else
        escape(c);
      at += length;
    }
    result += quote;
  }

  void escape(char32_t c) {
    const auto code = static_cast<uint32_t>(c);
    result += code < 0x100     ? format("\\x{:02x}", code)
              : code < 0x10000 ? format("\\u{:04x}", code)
                               : format("\\U{:08x}", code);
  }

  void items(char open, const std::vector<Value>& values, char close) {
    result += open;
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) result += ", ";
      repr(values[i]);
    }
    if (open == '(' && values.size() == 1) result += ',';
    result += close;
  }

  void dict(const Dict& dict) {
    result += '{';
    for (const auto& [key, value] : dict.items) {
      if (&key != &dict.items[0].first) result += ", ";
      repr(key);
      result += ": ";
      repr(value);
    }
    result += '}';
  }

  Heap& heap_;
};

}  // namespace

std::string repr(Heap& heap, const Value& value) {
  Printer printer(heap);
  printer.repr(value);
  return std::move(printer.result);
}

std::string str(Heap& heap, const Value& value) {
  if (value.is(Kind::string)) return value.text();
  if (value.is(Kind::undefined) || value.is(Kind::missing)) return "";
  return repr(heap, value);
}

}  // namespace stepforge::jinja
