// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/foreign_program.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/config/foreign_reader.h"

namespace stepforge {

namespace {

using Kind = ConfigValue::Kind;
using Variables = std::map<std::string, std::string, std::less<>>;

constexpr std::string_view kWayOut =
    "it is a program. Write its values as JSON and convert that: "
    "torchtitan's with json.dumps(dataclasses.asdict(config)), XTuner's with config.model_dump_json()";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

bool is_name(std::string_view text) {
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) == 0 &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

/// The text without a comment, which begins with # outside quotes.
std::string_view without_comment(std::string_view line) {
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '#' && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t')) {
      return line.substr(0, i);
    }
  }
  return line;
}

ConfigValue text_value_of(std::string text) {
  ConfigValue value;
  value.text = std::move(text);
  return value;
}

ConfigValue table_of(std::vector<ConfigEntry> entries) {
  ConfigValue table;
  table.kind = Kind::table;
  table.table = std::move(entries);
  return table;
}

/// A number, or a product of numbers.
std::optional<ConfigValue> product(std::string_view text) {
  ConfigValue result;
  result.kind = Kind::integer;
  result.integer = 1;
  while (true) {
    const size_t star = text.find('*');
    ConfigValue factor = yaml_scalar(std::string(trimmed(text.substr(0, star))));
    if (factor.kind != Kind::integer && factor.kind != Kind::number) return std::nullopt;
    if (star == std::string_view::npos && result.kind == Kind::integer && result.integer == 1) return factor;
    const double left = result.kind == Kind::integer ? static_cast<double>(result.integer) : result.number;
    const double right = factor.kind == Kind::integer ? static_cast<double>(factor.integer) : factor.number;
    constexpr double kExact = 9e15;
    if (result.kind == Kind::integer && factor.kind == Kind::integer && left * right < kExact) {
      result.integer *= factor.integer;
    } else {
      result.kind = Kind::number;
      result.number = left * right;
    }
    if (star == std::string_view::npos) return result;
    text.remove_prefix(star + 1);
  }
}

std::optional<ConfigValue> python_value(std::string_view text) {
  ConfigValue value;
  if (text == "None") return value;
  if (text == "True" || text == "False") {
    value.kind = Kind::boolean;
    value.boolean = text == "True";
    return value;
  }
  const bool is_quoted =
      text.size() >= 2 && (text.front() == '\'' || text.front() == '"') && text.back() == text.front();
  if (is_quoted && text.substr(1, text.size() - 2).find(text.front()) == std::string_view::npos) {
    value.text = text.substr(1, text.size() - 2);
    return value;
  }
  return product(text);
}

/// Replaces $NAME, ${NAME} and ${NAME:-value}; leaves what is not assigned.
std::string replaced(std::string_view text, const Variables& variables) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '$' || i + 1 == text.size() || text[i + 1] == '(') {
      out += text[i];
      continue;
    }
    const bool has_braces = text[i + 1] == '{';
    const size_t start = i + (has_braces ? 2 : 1);
    size_t end = start;
    while (end < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_'))
      ++end;
    const auto found = variables.find(text.substr(start, end - start));
    std::string_view fallback;
    size_t stop = end;
    if (has_braces) {
      stop = text.find('}', end);
      if (stop == std::string_view::npos) return std::string(text);
      const std::string_view rest = text.substr(end, stop - end);
      if (rest.starts_with(":-")) fallback = trimmed(rest.substr(2));
      ++stop;
    }
    if (fallback.size() >= 2 && fallback.front() == '"') fallback = fallback.substr(1, fallback.size() - 2);
    if (found != variables.end()) {
      out += found->second;
    } else if (!fallback.empty()) {
      out += fallback;
    } else {
      out += text.substr(i, stop - i);
    }
    i = stop - 1;
  }
  // $((A * B)) of numbers.
  if (out.starts_with("$((") && out.ends_with("))"))
    if (const auto value = product(std::string_view(out).substr(3, out.size() - 5));
        value && value->kind == Kind::integer)
      return format("{}", value->integer);
  return out;
}

/// The words of a line; quotes hold words together, parentheses of arrays are left out.
std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  char quote = 0;
  bool is_word = false;
  const auto finish = [&] {
    if (is_word) words.push_back(word);
    word.clear();
    is_word = false;
  };
  for (const char c : line) {
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      is_word = true;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      finish();
    } else {
      word += c;
      is_word = true;
    }
  }
  finish();
  return words;
}

/// NAME=value at the start of a line, with export or without.
void read_assignment(std::string_view line, Variables& variables) {
  line = trimmed(line);
  if (line.starts_with("export ")) line = trimmed(line.substr(7));
  const size_t equals = line.find('=');
  if (equals == std::string_view::npos || !is_name(line.substr(0, equals))) return;
  std::string_view value = trimmed(line.substr(equals + 1));
  if (value.starts_with('(')) return;
  if (value.size() >= 2 && (value.front() == '"' || value.front() == '\'') && value.back() == value.front())
    value = value.substr(1, value.size() - 2);
  if (value.find("--") != std::string_view::npos) return;  // a text of arguments
  variables[std::string(line.substr(0, equals))] = replaced(value, variables);
}

}  // namespace

ConfigValue parse_python_assignments(std::string_view text, const std::string& name) {
  std::vector<ConfigEntry> entries;
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::string_view statement = trimmed(without_comment(line));
    if (statement.empty() || statement.starts_with("import ")) continue;
    const size_t equals = statement.find('=');
    const std::string_view key = trimmed(statement.substr(0, equals));
    const bool is_indented = std::isspace(static_cast<unsigned char>(line.front())) != 0;
    if (is_indented || equals == std::string_view::npos || !is_name(key))
      throw FormatError(format("{}:{}: expected name = value: {}", name, number, kWayOut));
    const std::string_view right = trimmed(statement.substr(equals + 1));
    // A run name that contains the time has no value known here.
    std::optional<ConfigValue> value = python_value(right);
    if (!value && right.find("str(") != std::string_view::npos) value = text_value_of(std::string(right));
    if (!value)
      throw FormatError(
          format("{}:{}: {} is not a number, a text, True, False or None: {}", name, number, right, kWayOut));
    std::erase_if(entries, [&](const ConfigEntry& entry) { return entry.key == key; });
    entries.push_back({std::string(key), {number, 1}, *value});
  }
  return table_of(std::move(entries));
}

ConfigValue parse_shell_arguments(std::string_view text, const std::string& name) {
  Variables variables;
  std::vector<ConfigEntry> entries;
  std::istringstream lines{std::string(text)};
  int number = 0;
  std::vector<std::string> values;
  std::string key;
  const auto finish = [&] {
    if (key.empty()) return;
    ConfigValue value;
    value.kind = Kind::boolean;
    value.boolean = true;
    if (values.size() == 1) value = yaml_scalar(values.front());
    if (values.size() > 1) {
      value.kind = Kind::list;
      for (const std::string& word : values) value.list.push_back(text_value_of(word));
    }
    std::erase_if(entries, [&](const ConfigEntry& entry) { return entry.key == key; });
    entries.push_back({key, {number, 1}, value});
    key.clear();
    values.clear();
  };
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::string_view statement = without_comment(line);
    read_assignment(statement, variables);
    bool continues = false;
    for (std::string word : words_of(statement)) {
      continues = word == "\\";
      while (!word.empty() && (word.back() == ')' || word.back() == '(' || word.back() == '\\') &&
             word.find('$') == std::string::npos)
        word.pop_back();
      if (word.empty()) continue;
      word = replaced(word, variables);
      if (word.starts_with("--") && word.size() > 2) {
        finish();
        const size_t equals = word.find('=');
        key = word.substr(2, equals == std::string::npos ? equals : equals - 2);
        if (equals != std::string::npos) values.push_back(word.substr(equals + 1));
      } else if (!key.empty() &&
                 (word.ends_with(".py") || word.starts_with("${") || word == "|" || word == "&&")) {
        finish();  // the program, or an array of arguments
      } else if (!key.empty()) {
        values.push_back(word);
      }
    }
    if (!continues) finish();
  }
  finish();
  if (entries.empty()) throw FormatError(format("{}: it has no arguments of the form --key value", name));
  return table_of(std::move(entries));
}

}  // namespace stepforge
