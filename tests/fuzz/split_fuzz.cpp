// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for texts: the scanners of known patterns find the pieces of the regular expressions, a byte-level tokenizer
// returns every text, and text in a normal form stays as it is.
#include "stepforge/text/splitter.h"
#include "stepforge/text/unicode_forms.h"
#include "stepforge/text/utf8_repair.h"
#include "tests/fuzz/parts.h"

namespace {

using stepforge::NormalForm;
using stepforge::SplitPattern;
using stepforge::fuzz::require;

void compare_pieces(std::string_view text) {
  static SplitPattern::Scratch scratch;
  struct Both {
    SplitPattern scanner;
    SplitPattern expression;
  };
  static const auto patterns = [] {
    std::vector<Both> both;
    for (const auto pattern : {stepforge::kGpt2Pattern, stepforge::kLlama3Pattern, stepforge::kQwen2Pattern})
      both.push_back({SplitPattern(pattern, "fuzz"), SplitPattern(pattern, "fuzz", false)});
    return both;
  }();
  for (const Both& pattern : patterns) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t length = pattern.scanner.piece_length(text, begin, scratch);
      require(length > 0 && length == pattern.expression.piece_length(text, begin, scratch));
      begin += length;
    }
    pattern.scanner.for_each_pieces(text, scratch, [&](std::string_view rest, std::span<const size_t> ends) {
      size_t begin = 0;
      for (const size_t end : ends) {
        require(end - begin == pattern.scanner.piece_length(rest, begin, scratch));
        begin = end;
      }
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = stepforge::repaired_utf8(std::string(reinterpret_cast<const char*>(data), size));
  compare_pieces(text);
  static const auto tokenizer = stepforge::make_byte_tokenizer();
  require(tokenizer->decode(tokenizer->encode(text)) == text);
  for (const NormalForm form : {NormalForm::nfc, NormalForm::nfd, NormalForm::nfkc, NormalForm::nfkd}) {
    const std::string normal = normal_form(text, form);
    require(stepforge::find_invalid_utf8(normal) == std::string_view::npos);
    require(normal_form(normal, form) == normal);
  }
  return 0;
}
