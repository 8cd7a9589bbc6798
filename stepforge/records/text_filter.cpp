// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/text_filter.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/records/text_chunks.h"
#include "stepforge/text/character_classes.h"
#include "stepforge/text/unicode_forms.h"

namespace stepforge {

namespace {

struct TextCounts {
  int64_t characters = 0;
  int64_t symbols = 0;
  int64_t words = 0;
  int64_t word_characters = 0;
};

bool is_symbol(std::string_view text, size_t position, CharacterClass kind) {
  if (kind != CharacterClass::other) return false;
  return static_cast<uint8_t>(text[position]) < 0x80 || !is_mark(decode_code_point(text.substr(position)));
}

TextCounts count_characters(std::string_view text) {
  TextCounts counts;
  bool in_word = false;
  for (size_t position = 0; position < text.size();) {
    const ClassifiedCharacter character = character_at(text, position);
    const bool is_space =
        character.kind == CharacterClass::space || character.kind == CharacterClass::line_break;
    ++counts.characters;
    counts.symbols += is_symbol(text, position, character.kind) ? 1 : 0;
    counts.words += !is_space && !in_word ? 1 : 0;
    counts.word_characters += is_space ? 0 : 1;
    in_word = !is_space;
    position += character.length;
  }
  return counts;
}

double share_of(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

template <typename Number>
void check_range(std::string_view name, Number min, Number max) {
  if (max == 0 || min <= max) return;
  throw UsageError(
      format("filter: min_{0} = {1} is above max_{0} = {2}: no document could be kept", name, min, max));
}

std::vector<SplitPattern> compile_all(const std::vector<std::string>& patterns, const char* name) {
  std::vector<SplitPattern> compiled;
  try {
    for (const std::string& pattern : patterns)
      compiled.push_back(SplitPattern::search(pattern, format("filter: {}", name)));
  } catch (const FormatError& fault) {
    throw UsageError(fault.what());
  }
  return compiled;
}

}  // namespace

TextFilter::TextFilter(TextFilterRules rules) : rules_(std::move(rules)) {
  check_range("bytes", rules_.min_bytes, rules_.max_bytes);
  check_range("words", rules_.min_words, rules_.max_words);
  check_range("mean_word_length", rules_.min_mean_word_length, rules_.max_mean_word_length);
  counts_characters_ = rules_.min_words > 0 || rules_.max_words > 0 || rules_.max_symbols < 1.0 ||
                       rules_.min_mean_word_length > 0.0 || rules_.max_mean_word_length > 0.0;
  include_ = compile_all(rules_.include, "include");
  exclude_ = compile_all(rules_.exclude, "exclude");
}

std::string_view TextFilter::broken_rule(std::string_view text, Scratch& scratch) const {
  const auto bytes = std::ssize(text);
  if (bytes < rules_.min_bytes) return "min_bytes";
  if (rules_.max_bytes > 0 && bytes > rules_.max_bytes) return "max_bytes";
  if (counts_characters_) {
    if (const std::string_view rule = broken_count(text); !rule.empty()) return rule;
  }
  if (rules_.max_repeated_lines < 1.0 && repeats_lines(text, scratch)) return "max_repeated_lines";
  if (!include_.empty() && !has_match(include_, text, scratch)) return "include";
  if (has_match(exclude_, text, scratch)) return "exclude";
  return "";
}

std::string_view TextFilter::broken_count(std::string_view text) const {
  const TextCounts counts = count_characters(text);
  if (counts.words < rules_.min_words) return "min_words";
  if (rules_.max_words > 0 && counts.words > rules_.max_words) return "max_words";
  if (share_of(counts.symbols, counts.characters) > rules_.max_symbols) return "max_symbols";
  const double length = share_of(counts.word_characters, counts.words);
  if (length < rules_.min_mean_word_length) return "min_mean_word_length";
  if (rules_.max_mean_word_length > 0.0 && length > rules_.max_mean_word_length)
    return "max_mean_word_length";
  return "";
}

bool TextFilter::repeats_lines(std::string_view text, Scratch& scratch) const {
  auto& lines = scratch.lines;
  lines.clear();
  for (size_t begin = 0; begin < text.size();) {
    const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
    if (!is_blank(line)) lines.push_back(hash128(line).low);
    begin += line.size() + 1;
  }
  const auto all = std::ssize(lines);
  std::sort(lines.begin(), lines.end());
  const auto distinct = std::unique(lines.begin(), lines.end()) - lines.begin();
  return share_of(all - distinct, all) > rules_.max_repeated_lines;
}

bool TextFilter::has_match(const std::vector<SplitPattern>& patterns, std::string_view text,
                           Scratch& scratch) const {
  return std::any_of(patterns.begin(), patterns.end(), [&](const SplitPattern& pattern) {
    return pattern.find(text, 0, scratch.matching).has_value();
  });
}

Json TextFilter::description() const {
  const TextFilterRules all;
  Json json = Json::object();
  const auto add = [&](const char* name, const auto& value, const auto& fallback) {
    if (value != fallback) json[name] = value;
  };
  add("min_bytes", rules_.min_bytes, all.min_bytes);
  add("max_bytes", rules_.max_bytes, all.max_bytes);
  add("min_words", rules_.min_words, all.min_words);
  add("max_words", rules_.max_words, all.max_words);
  add("max_symbols", rules_.max_symbols, all.max_symbols);
  add("min_mean_word_length", rules_.min_mean_word_length, all.min_mean_word_length);
  add("max_mean_word_length", rules_.max_mean_word_length, all.max_mean_word_length);
  add("max_repeated_lines", rules_.max_repeated_lines, all.max_repeated_lines);
  add("include", rules_.include, all.include);
  add("exclude", rules_.exclude, all.exclude);
  return json;
}

}  // namespace stepforge
