// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/pre_tokenizer.h"

#include <algorithm>

#include "stepforge/base/utf8.h"
#include "stepforge/text/byte_alphabet.h"
#include "stepforge/text/replace.h"
#include "stepforge/text/text_pattern.h"
#include "stepforge/text/unicode_forms.h"
#include "stepforge/text/unicode_scripts.h"

namespace stepforge {

namespace {

/// What Rust calls numeric in `tokenizers` 0.23: Unicode 17, where its regular expressions have Unicode 16.
constexpr const char* kNumbers = R"([\p{N}\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6}])";

CutBehavior read_behavior(const JsonReader& behavior) {
  const std::string& name = behavior.text();
  if (name == "Isolated") return CutBehavior::isolated;
  if (name == "Removed") return CutBehavior::removed;
  if (name == "Contiguous") return CutBehavior::contiguous;
  if (name == "MergedWithPrevious") return CutBehavior::merged_with_previous;
  if (name == "MergedWithNext") return CutBehavior::merged_with_next;
  behavior.refuse("only Isolated, Removed, Contiguous, MergedWithPrevious and MergedWithNext are supported");
}

std::vector<std::string_view> pieces_of_length(std::string_view text, size_t characters) {
  std::vector<std::string_view> pieces;
  size_t begin = 0;
  size_t count = 0;
  for (size_t at = 0; at < text.size();) {
    at += utf8_sequence_length(text.substr(at));
    if (++count < characters && at < text.size()) continue;
    pieces.push_back(text.substr(begin, at - begin));
    begin = at;
    count = 0;
  }
  return pieces;
}

/// Cuts where the script changes. As in Hugging Face, what comes before the first character with a script is lost.
std::vector<std::string_view> pieces_of_scripts(std::string_view text) {
  std::vector<std::string_view> pieces;
  std::optional<size_t> begin;
  uint8_t last = kAnyScript;
  for (size_t at = 0; at < text.size(); at += utf8_sequence_length(text.substr(at))) {
    const uint8_t script = script_of(decode_code_point(text.substr(at)));
    if (script == kAnyScript || script == last) continue;
    if (begin) pieces.push_back(text.substr(*begin, at - *begin));
    begin = at;
    last = script;
  }
  if (begin) pieces.push_back(text.substr(*begin));
  return pieces;
}

}  // namespace

PreTokenizer::PreTokenizer(const JsonReader& pre_tokenizer) {
  read(pre_tokenizer);
}

void PreTokenizer::add(Step step) {
  steps_.push_back(std::move(step));
  used_ = steps_.size();
}

bool PreTokenizer::ends_in_bytes() const {
  const auto writes_bytes = [](const Step& step) { return step.kind == Step::Kind::byte_alphabet; };
  return !steps_.empty() && writes_bytes(steps_.back()) &&
         std::count_if(steps_.begin(), steps_.end(), writes_bytes) == 1;
}

std::optional<PreTokenizer::Changed> PreTokenizer::change(const Step& step, std::string_view text,
                                                          size_t head) const {
  if (step.kind == Step::Kind::prefix_space) {
    if (text.starts_with(' ')) return std::nullopt;
    return Changed{" " + std::string(text), head > 0 ? head + 1 : 0};
  }
  if (step.kind == Step::Kind::byte_alphabet)
    return Changed{to_byte_alphabet(text), to_byte_alphabet(text.substr(0, head)).size()};
  Changed changed{replace_text(text, " ", step.replacement),
                  replace_text(text.substr(0, head), " ", step.replacement).size()};
  const bool wanted =
      step.prepend == Metaspace::Prepend::always || (step.prepend == Metaspace::Prepend::first && head > 0);
  if (wanted && !changed.text.starts_with(step.replacement)) {
    changed.text.insert(0, step.replacement);
    if (head > 0) changed.head += step.replacement.size();
  }
  return changed;
}

void PreTokenizer::read_byte_level(const JsonReader& step) {
  step.only_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (step["add_prefix_space"].boolean()) add(Step{.kind = Step::Kind::prefix_space});
  if (step.boolean_or("use_regex", true))
    add(Cut(SplitPattern(kGpt2Pattern, "ByteLevel"), CutBehavior::isolated, false));
  add(Step{.kind = Step::Kind::byte_alphabet});
}

void PreTokenizer::read_metaspace(const Metaspace& metaspace) {
  add(Step{
      .kind = Step::Kind::metaspace, .replacement = metaspace.replacement, .prepend = metaspace.prepend});
  if (metaspace.split) {
    add(Cut(SplitPattern(literal_pattern(metaspace.replacement), "Metaspace"), CutBehavior::merged_with_next,
            false));
  }
}

void PreTokenizer::read(const JsonReader& step) {
  const std::string& type = step["type"].text();
  if (type == "Sequence") {
    step.only_keys({"type", "pretokenizers"});
    const JsonReader steps = step["pretokenizers"];
    for (size_t i = 0; i < steps.size(); ++i) read(steps.at(i));
  } else if (type == "Split") {
    step.only_keys({"type", "pattern", "behavior", "invert"});
    add(Cut(read_text_pattern(step["pattern"]), read_behavior(step["behavior"]), step["invert"].boolean()));
  } else if (type == "ByteLevel") {
    read_byte_level(step);
  } else if (type == "Metaspace") {
    read_metaspace(Metaspace(step));
  } else if (type == "Digits") {
    step.only_keys({"type", "individual_digits"});
    add(Cut(SplitPattern(kNumbers, "Digits"),
            step["individual_digits"].boolean() ? CutBehavior::isolated : CutBehavior::contiguous, false));
  } else if (type == "Punctuation") {
    step.only_keys({"type", "behavior"});
    add(Cut(is_punctuation, step.has("behavior") ? read_behavior(step["behavior"]) : CutBehavior::isolated));
  } else if (type == "WhitespaceSplit") {
    step.only_keys({"type"});
    add(Cut(is_white_space, CutBehavior::removed));
  } else if (type == "Whitespace") {
    step.only_keys({"type"});
    add(Cut(is_white_space, CutBehavior::removed));
    add(Cut(is_word_character, CutBehavior::contiguous));
  } else if (type == "BertPreTokenizer") {
    step.only_keys({"type"});
    add(Cut(is_white_space, CutBehavior::removed));
    add(Cut(is_punctuation, CutBehavior::isolated));
  } else if (type == "CharDelimiterSplit") {
    step.only_keys({"type", "delimiter"});
    add(Cut(SplitPattern(literal_pattern(read_character(step["delimiter"])), "CharDelimiterSplit"),
            CutBehavior::removed, false));
  } else if (type == "UnicodeScripts") {
    step.only_keys({"type"});
    add(Cut(pieces_of_scripts));
  } else if (type == "FixedLength") {
    step.only_keys({"type", "length"});
    const int64_t length = step.integer_or("length", 5, 1);
    add(Cut([length](std::string_view text) { return pieces_of_length(text, static_cast<size_t>(length)); }));
  } else {
    step["type"].refuse(
        "only Split, ByteLevel, Digits, FixedLength, Metaspace, Punctuation, UnicodeScripts, Whitespace, "
        "WhitespaceSplit, BertPreTokenizer, CharDelimiterSplit and Sequence are supported");
  }
}

}  // namespace stepforge
