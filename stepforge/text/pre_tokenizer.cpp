// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/pre_tokenizer.h"

#include <algorithm>

#include "stepforge/base/utf8.h"
#include "stepforge/text/byte_alphabet.h"
#include "stepforge/text/text_pattern.h"
#include "stepforge/text/unicode_forms.h"

namespace stepforge {

namespace {

CutBehavior read_behavior(const JsonReader& behavior) {
  const std::string& name = behavior.text();
  if (name == "Isolated") return CutBehavior::isolated;
  if (name == "Removed") return CutBehavior::removed;
  if (name == "Contiguous") return CutBehavior::contiguous;
  if (name == "MergedWithPrevious") return CutBehavior::merged_with_previous;
  if (name == "MergedWithNext") return CutBehavior::merged_with_next;
  behavior.refuse("only Isolated, Removed, Contiguous, MergedWithPrevious and MergedWithNext are supported");
}

std::string read_character(const JsonReader& value) {
  const std::string& text = value.text();
  if (text.empty() || utf8_sequence_length(text) != text.size()) value.refuse("one character is expected");
  return text;
}

}  // namespace

PreTokenizer::PreTokenizer(const JsonReader& pre_tokenizer, bool keeps_beginning) {
  read(pre_tokenizer, keeps_beginning);
}

bool PreTokenizer::ends_in_bytes() const {
  const auto writes_bytes = [](const Step& step) { return step.kind == Step::Kind::byte_alphabet; };
  return !steps_.empty() && writes_bytes(steps_.back()) &&
         std::count_if(steps_.begin(), steps_.end(), writes_bytes) == 1;
}

std::optional<std::string> PreTokenizer::change(const Step& step, std::string_view text, bool first) const {
  if (step.kind == Step::Kind::prefix_space) {
    if (text.starts_with(' ')) return std::nullopt;
    return " " + std::string(text);
  }
  if (step.kind == Step::Kind::byte_alphabet) {
    if (&step == &steps_.back() && ends_in_bytes()) return std::nullopt;
    return to_byte_alphabet(text);
  }
  std::string changed;
  for (const char c : text) {
    if (c == ' ') {
      changed += step.replacement;
    } else {
      changed += c;
    }
  }
  const bool wanted = step.prefix == Step::Prefix::always || (step.prefix == Step::Prefix::first && first);
  if (wanted && !changed.starts_with(step.replacement)) changed.insert(0, step.replacement);
  return changed;
}

void PreTokenizer::read_byte_level(const JsonReader& step) {
  step.only_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (step["add_prefix_space"].boolean())
    steps_.push_back({.kind = Step::Kind::prefix_space, .cut = {}, .replacement = {}});
  if (step.boolean_or("use_regex", true))
    add(Cut(SplitPattern(kGpt2Pattern, "ByteLevel"), CutBehavior::isolated, false));
  steps_.push_back({.kind = Step::Kind::byte_alphabet, .cut = {}, .replacement = {}});
}

void PreTokenizer::read_metaspace(const JsonReader& step, bool keeps_beginning) {
  step.only_keys({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const std::string scheme = step.text_or("prepend_scheme", "always");
  Step metaspace{
      .kind = Step::Kind::metaspace, .cut = {}, .replacement = read_character(step["replacement"])};
  if (scheme == "always") {
    metaspace.prefix = Step::Prefix::always;
  } else if (scheme == "first") {
    if (!steps_.empty() || !keeps_beginning)
      step.refuse("prepend_scheme", "\"first\" is supported only before all that can change the beginning");
    metaspace.prefix = Step::Prefix::first;
  } else if (scheme != "never") {
    step["prepend_scheme"].refuse("only always, first and never are supported");
  }
  if (step.has("add_prefix_space") && !step["add_prefix_space"].boolean() && scheme != "never")
    step["add_prefix_space"].refuse(R"(false needs the prepend_scheme "never")");
  const std::string pattern = literal_pattern(metaspace.replacement);
  steps_.push_back(std::move(metaspace));
  if (step.boolean_or("split", true))
    add(Cut(SplitPattern(pattern, "Metaspace"), CutBehavior::merged_with_next, false));
}

void PreTokenizer::read(const JsonReader& step, bool keeps_beginning) {
  const std::string& type = step["type"].text();
  if (type == "Sequence") {
    step.only_keys({"type", "pretokenizers"});
    const JsonReader steps = step["pretokenizers"];
    for (size_t i = 0; i < steps.size(); ++i) read(steps.at(i), keeps_beginning);
  } else if (type == "Split") {
    step.only_keys({"type", "pattern", "behavior", "invert"});
    add(Cut(read_text_pattern(step["pattern"]), read_behavior(step["behavior"]), step["invert"].boolean()));
  } else if (type == "ByteLevel") {
    read_byte_level(step);
  } else if (type == "Metaspace") {
    read_metaspace(step, keeps_beginning);
  } else if (type == "Digits") {
    step.only_keys({"type", "individual_digits"});
    add(Cut(SplitPattern(R"(\p{N})", "Digits"),
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
  } else {
    step["type"].refuse(
        "only Split, ByteLevel, Digits, Metaspace, Punctuation, Whitespace, WhitespaceSplit, "
        "BertPreTokenizer, "
        "CharDelimiterSplit and Sequence are supported");
  }
}

}  // namespace stepforge
