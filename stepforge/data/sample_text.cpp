// SPDX-License-Identifier: Apache-2.0
// render_sample() of sample.h.
#include <algorithm>
#include <string_view>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/data/sample.h"
#include "stepforge/data/terminal_text.h"

namespace stepforge {

namespace {

class SamplePrinter {
 public:
  SamplePrinter(const Sample& sample, const Tokenizer& tokenizer, const ShowOptions& options)
      : sample_(sample), tokenizer_(tokenizer), options_(options) {}

  std::string print() {
    title(format("sample {} of {}", sample_.number, printable(sample_.source)));
    for (const std::string& note : sample_.notes) text_ += printable(note) + "\n";
    if (!sample_.record.empty()) {
      section("record");
      text_ += printable(sample_.record) + "\n";
    }
    if (sample_.pair) print_pair(*sample_.pair);
    if (!sample_.tokens.empty()) {
      print_text();
      print_tokens();
    }
    return std::move(text_);
  }

 private:
  std::string painted(std::string_view text, std::string_view code) const {
    return stepforge::painted(text, code, options_.colour);
  }
  void title(const std::string& text) { text_ += painted(text, kBoldText) + "\n"; }
  void section(const std::string& name) { text_ += painted(format("--- {} ---", name), kDimText) + "\n"; }

  bool is_learned(size_t i) const { return i > 0 && sample_.counted[i] != 0; }

  void print_text() {
    const auto learned = std::count_if(sample_.counted.begin() + 1, sample_.counted.end(),
                                       [](uint8_t flag) { return flag != 0; });
    section(format("{} tokens, {} learned", sample_.tokens.size(), learned));
    bool inside = false;
    for (size_t i = 0; i < sample_.tokens.size(); ++i) {
      if (is_learned(i) != inside) switch_mark(inside);
      const std::string word = tokenizer_.token_text(sample_.tokens[i]);
      text_ += painted(word, is_learned(i) ? (i % 2 == 0 ? kEvenColour : kOddColour) : kDimText);
      if (word.ends_with("\\n")) text_ += "\n";
    }
    if (inside) switch_mark(inside);
    if (!text_.ends_with('\n')) text_ += "\n";
  }

  void switch_mark(bool& inside) {
    if (!options_.colour) text_ += inside ? "<<" : ">>";
    inside = !inside;
  }

  void print_tokens() {
    section("tokens");
    title(format("{:>7} {:>7}  {:<8} {}", "index", "token", "learned", "text"));
    const size_t count = sample_.tokens.size();
    const size_t shown =
        options_.max_tokens > 0 ? std::min(count, static_cast<size_t>(options_.max_tokens)) : count;
    for (size_t i = 0; i < shown; ++i) {
      const std::string line = format("{:>7} {:>7}  {:<8} \"{}\"", i, sample_.tokens[i],
                                      is_learned(i) ? "yes" : "-", tokenizer_.token_text(sample_.tokens[i]));
      text_ += (is_learned(i) ? line : painted(line, kDimText)) + "\n";
    }
    if (shown < count) text_ += format("{:>7} {} more tokens\n", "...", count - shown);
  }

  void print_pair(const PreferencePair& pair) {
    print_part("prompt", pair.prompt);
    print_part("chosen", pair.chosen);
    print_part("rejected", pair.rejected);
  }

  void print_part(const std::string& name, const Json& part) {
    section(name);
    if (part.is_string()) {
      text_ += printable(part.get_ref<const std::string&>()) + "\n";
      return;
    }
    for (const Json& message : part) {
      const Json& content = message.contains("content") ? message["content"] : Json();
      const bool is_plain = content.is_string() && message.size() == 2;
      text_ += painted(printable(message["role"].get_ref<const std::string&>()), kBoldText) + ": ";
      text_ += printable(is_plain ? content.get_ref<const std::string&>()
                                  : message.dump(-1, ' ', false, Json::error_handler_t::replace)) +
               "\n";
    }
  }

  const Sample& sample_;
  const Tokenizer& tokenizer_;
  const ShowOptions& options_;
  std::string text_;
};

}  // namespace

std::string render_sample(const Sample& sample, const Tokenizer& tokenizer, const ShowOptions& options) {
  return SamplePrinter(sample, tokenizer, options).print();
}

}  // namespace stepforge
