// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/normalizer.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/text_pattern.h"
#include "stepforge/text/unicode_forms.h"

namespace stepforge {

namespace {

// The longest compatibility form has 11 times the bytes of its character. Replacements in a hostile file could
// double a text many times over.
constexpr size_t kMaxGrowth = 64;
constexpr size_t kMaxGrowthBytes = size_t{1} << 20;

std::optional<NormalForm> form_named(std::string_view name) {
  if (name == "NFC") return NormalForm::nfc;
  if (name == "NFD") return NormalForm::nfd;
  if (name == "NFKC") return NormalForm::nfkc;
  if (name == "NFKD") return NormalForm::nfkd;
  return std::nullopt;
}

std::string_view without_leading_space(std::string_view text) {
  while (!text.empty() && is_white_space(decode_code_point(text)))
    text.remove_prefix(utf8_sequence_length(text));
  return text;
}

/// The last character of a text that is not empty.
std::string_view last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return text.substr(begin);
}

std::string_view without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    const std::string_view last = last_character(text);
    if (!is_white_space(decode_code_point(last))) break;
    text.remove_suffix(last.size());
  }
  return text;
}

std::string without_marks(std::string_view text) {
  std::string kept;
  while (!text.empty()) {
    const size_t length = utf8_sequence_length(text);
    if (!is_mark(decode_code_point(text))) kept += text.substr(0, length);
    text.remove_prefix(length);
  }
  return kept;
}

std::string replaced(std::string_view text, const SplitPattern& pattern, const std::string& content,
                     SplitPattern::Scratch& scratch, size_t limit) {
  std::string result;
  size_t begin = 0;
  while (begin < text.size()) {
    const auto match = pattern.find(text, begin, scratch);
    if (!match) break;
    result += text.substr(begin, match->begin - begin);
    result += content;
    begin = match->end;
    if (result.size() > limit) break;
  }
  return result += text.substr(begin);
}

size_t max_normalized(size_t bytes) {
  return kMaxGrowthBytes + kMaxGrowth * bytes;
}

}  // namespace

Normalizer::Normalizer(const JsonReader& normalizer) {
  read(normalizer);
}

void Normalizer::read(const JsonReader& normalizer) {
  const std::string& type = normalizer["type"].text();
  if (const auto form = form_named(type)) {
    normalizer.only_keys({"type"});
    steps_.emplace_back([form = *form](std::string_view text, auto&) {
      return may_change(text, form) ? std::optional(normal_form(text, form)) : std::nullopt;
    });
  } else if (type == "Lowercase") {
    normalizer.only_keys({"type"});
    steps_.emplace_back([](std::string_view text, auto&) { return std::optional(lower_case(text)); });
  } else if (type == "Strip") {
    normalizer.only_keys({"type", "strip_left", "strip_right"});
    keeps_beginning_ = false;
    steps_.emplace_back([left = normalizer["strip_left"].boolean(),
                         right = normalizer["strip_right"].boolean()](std::string_view text, auto&) {
      if (left) text = without_leading_space(text);
      return std::optional(std::string(right ? without_trailing_space(text) : text));
    });
  } else if (type == "StripAccents") {
    normalizer.only_keys({"type"});
    keeps_beginning_ = false;
    steps_.emplace_back([](std::string_view text, auto&) { return std::optional(without_marks(text)); });
  } else if (type == "Replace") {
    normalizer.only_keys({"type", "pattern", "content"});
    keeps_beginning_ = false;
    steps_.emplace_back([pattern = read_text_pattern(normalizer["pattern"]),
                         content = normalizer["content"].text()](std::string_view text, auto& scratch) {
      return std::optional(replaced(text, pattern, content, scratch, max_normalized(text.size())));
    });
  } else if (type == "Prepend") {
    normalizer.only_keys({"type", "prepend"});
    steps_.emplace_back([prefix = normalizer["prepend"].text()](std::string_view text, auto&) {
      return text.empty() ? std::nullopt : std::optional(prefix + std::string(text));
    });
  } else if (type == "Sequence") {
    normalizer.only_keys({"type", "normalizers"});
    const JsonReader steps = normalizer["normalizers"];
    for (size_t i = 0; i < steps.size(); ++i) read(steps.at(i));
  } else {
    normalizer["type"].refuse(
        "only NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend and Sequence are "
        "supported");
  }
}

std::string_view Normalizer::apply(std::string_view text, std::string& buffer,
                                   SplitPattern::Scratch& scratch) const {
  const size_t limit = max_normalized(text.size());
  for (const Step& step : steps_) {
    std::optional<std::string> changed = step(text, scratch);
    if (!changed) continue;
    if (changed->size() > limit) {
      throw Error(
          format("normalizing a text made more than {} bytes of it; does the normalizer of this "
                 "tokenizer.json repeat a replacement?",
                 limit));
    }
    buffer = std::move(*changed);
    text = buffer;
  }
  return text;
}

}  // namespace stepforge
