// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/normalizer.h"

#include <algorithm>
#include <memory>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/bert_text.h"
#include "stepforge/text/byte_alphabet.h"
#include "stepforge/text/character_map.h"
#include "stepforge/text/replace.h"
#include "stepforge/text/text_pattern.h"
#include "stepforge/text/unicode_forms.h"

namespace stepforge {

namespace {

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

/// The head after a replacement: the replacement of a match comes from its last character.
size_t head_of_replaced(std::string_view text, size_t head, const SplitPattern& pattern, size_t content_size,
                        SplitPattern::Scratch& scratch) {
  size_t size = 0;
  size_t begin = 0;
  while (begin < head) {
    const auto match = pattern.find(text, begin, scratch);
    if (!match || match->begin >= head) return size + head - begin;
    size += match->begin - begin;
    if (match->end > head) return size;
    size += content_size;
    begin = match->end;
  }
  return size;
}

/// The bytes at the beginning of both texts that are whole characters and equal.
size_t common_beginning(std::string_view left, std::string_view right) {
  const size_t end = std::min(left.size(), right.size());
  size_t size = 0;
  while (size < end) {
    const size_t length = utf8_sequence_length(left.substr(size));
    if (left.substr(size, length) != right.substr(size, length)) break;
    size += length;
  }
  return size;
}

}  // namespace

Normalizer::Normalizer(const JsonReader& normalizer) {
  read(normalizer);
}

/// A change of each character by itself.
void Normalizer::add(std::string (*function)(std::string_view)) {
  const Change change = [function](std::string_view text, auto&) { return std::optional(function(text)); };
  steps_.push_back({change, [change](std::string_view text, std::string_view, size_t head, auto& scratch) {
                      const auto changed = change(text.substr(0, head), scratch);
                      return changed ? changed->size() : head;
                    }});
}

void Normalizer::add_form(NormalForm form) {
  const Change change = [form](std::string_view text, auto&) {
    return may_change(text, form) ? std::optional(normal_form(text, form)) : std::nullopt;
  };
  const Head new_head = [form](std::string_view text, std::string_view changed, size_t head, auto&) {
    if (head == 0 || changed.empty()) return size_t{0};
    // Characters after the first may combine with it, or move between its parts.
    return std::max(common_beginning(normal_form(text.substr(0, head), form), changed),
                    utf8_sequence_length(changed));
  };
  steps_.push_back({change, new_head});
}

void Normalizer::add_strip(bool left, bool right) {
  const Change change = [left, right](std::string_view text, auto&) {
    if (left) text = without_leading_space(text);
    return std::optional(std::string(right ? without_trailing_space(text) : text));
  };
  const Head new_head = [left](std::string_view text, std::string_view, size_t head, auto&) {
    const size_t removed = left ? text.size() - without_leading_space(text).size() : 0;
    return head > removed ? head - removed : 0;
  };
  steps_.push_back({change, new_head});
}

void Normalizer::add_replace(SplitPattern pattern, std::string content) {
  const Head new_head = [pattern, size = content.size()](std::string_view text, std::string_view, size_t head,
                                                         auto& scratch) {
    return head_of_replaced(text, head, pattern, size, scratch);
  };
  const Change change = [pattern, content = std::move(content)](std::string_view text, auto& scratch) {
    return std::optional(replace_matches(text, pattern, content, scratch, max_replaced(text.size())));
  };
  steps_.push_back({change, new_head});
}

void Normalizer::add_prepend(std::string prefix) {
  const Head new_head = [size = prefix.size()](std::string_view text, std::string_view, size_t head, auto&) {
    return head > 0 ? head + size : 0;
  };
  const Change change = [prefix = std::move(prefix)](std::string_view text, auto&) {
    return text.empty() ? std::nullopt : std::optional(prefix + std::string(text));
  };
  steps_.push_back({change, new_head});
}

void Normalizer::add_bert(const JsonReader& normalizer) {
  normalizer.only_keys({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  const bool lowercase = normalizer["lowercase"].boolean();
  if (normalizer["clean_text"].boolean()) add(without_controls);
  if (normalizer["handle_chinese_chars"].boolean()) add(with_spaced_ideographs);
  if (normalizer.boolean_or("strip_accents", lowercase)) {
    add_form(NormalForm::nfd);
    add(without_nonspacing_marks);
  }
  if (lowercase) add(lower_case);
}

void Normalizer::add_precompiled(const JsonReader& charsmap) {
  const auto map = std::make_shared<const CharacterMap>(charsmap);
  steps_.push_back(
      {[map](std::string_view text, auto&) {
         return std::optional(map->apply(text, max_replaced(text.size())));
       },
       [map](std::string_view text, std::string_view, size_t head, auto&) { return map->head(text, head); }});
}

void Normalizer::read(const JsonReader& normalizer) {
  const std::string& type = normalizer["type"].text();
  if (const auto form = form_named(type)) {
    normalizer.only_keys({"type"});
    add_form(*form);
  } else if (type == "Lowercase") {
    normalizer.only_keys({"type"});
    add(lower_case);
  } else if (type == "Strip") {
    normalizer.only_keys({"type", "strip_left", "strip_right"});
    add_strip(normalizer["strip_left"].boolean(), normalizer["strip_right"].boolean());
  } else if (type == "StripAccents") {
    normalizer.only_keys({"type"});
    add(without_marks);
  } else if (type == "Replace") {
    normalizer.only_keys({"type", "pattern", "content"});
    add_replace(read_text_pattern(normalizer["pattern"]), normalizer["content"].text());
  } else if (type == "Prepend") {
    normalizer.only_keys({"type", "prepend"});
    add_prepend(normalizer["prepend"].text());
  } else if (type == "ByteLevel") {
    normalizer.only_keys({"type"});
    add(to_byte_alphabet);
  } else if (type == "Nmt") {
    normalizer.only_keys({"type"});
    add(nmt_text);
  } else if (type == "BertNormalizer") {
    add_bert(normalizer);
  } else if (type == "Precompiled") {
    normalizer.only_keys({"type", "precompiled_charsmap"});
    add_precompiled(normalizer["precompiled_charsmap"]);
  } else if (type == "Sequence") {
    normalizer.only_keys({"type", "normalizers"});
    const JsonReader steps = normalizer["normalizers"];
    for (size_t i = 0; i < steps.size(); ++i) read(steps.at(i));
  } else {
    normalizer["type"].refuse(
        "only NFC, NFD, NFKC, NFKD, BertNormalizer, ByteLevel, Lowercase, Nmt, Precompiled, Prepend, "
        "Replace, Strip, StripAccents and Sequence are supported");
  }
}

std::string_view Normalizer::apply(std::string_view text, std::string& buffer, size_t& head,
                                   SplitPattern::Scratch& scratch) const {
  const size_t limit = max_replaced(text.size());
  for (const Step& step : steps_) {
    std::optional<std::string> changed = step.change(text, scratch);
    if (!changed) continue;
    if (changed->size() > limit) {
      throw Error(
          format("normalizing a text made more than {} bytes of it; does the normalizer of this "
                 "tokenizer.json repeat a replacement?",
                 limit));
    }
    if (head > 0) head = step.head(text, *changed, head, scratch);
    buffer = std::move(*changed);
    text = buffer;
  }
  return text;
}

}  // namespace stepforge
