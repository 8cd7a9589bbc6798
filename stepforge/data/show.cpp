// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/show.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/data/terminal_text.h"

namespace stepforge {

namespace {

/// Writes one batch. Without colour, bars separate the tokens; ignored labels are marked "ignored".
class BatchPrinter {
 public:
  BatchPrinter(const Batch& batch, const Tokenizer& tokenizer, const ShowOptions& options)
      : batch_(batch), tokenizer_(tokenizer), options_(options) {}

  std::string print() {
    for (int64_t row = 0; row < batch_.rows; ++row) print_row(row);
    return std::move(text_);
  }

 private:
  struct Part {
    int64_t begin;
    int64_t end;
  };

  std::string painted(std::string_view text, std::string_view code) const {
    return stepforge::painted(text, code, options_.colour);
  }

  int32_t token(int64_t i) const { return batch_.tokens[static_cast<size_t>(i)]; }
  int32_t label(int64_t i) const { return batch_.labels[static_cast<size_t>(i)]; }
  int32_t position(int64_t i) const { return batch_.positions[static_cast<size_t>(i)]; }

  std::vector<Part> parts_of_row(int64_t row) const {
    const int64_t begin = row * batch_.seq_len;
    std::vector<Part> parts;
    for (size_t i = 0; i + 1 < batch_.cu_seqlens.size(); ++i) {
      const Part part{batch_.cu_seqlens[i], batch_.cu_seqlens[i + 1]};
      if (part.begin >= begin && part.end <= begin + batch_.seq_len) parts.push_back(part);
    }
    return parts;
  }

  void print_row(int64_t row) {
    const auto parts = parts_of_row(row);
    const auto first = batch_.labels.begin() + row * batch_.seq_len;
    const auto ignored = std::count(first, first + batch_.seq_len, kIgnoredLabel);
    text_ += painted(format("row {}: {} tokens, {} document parts, {} labels ({} ignored)",
                            batch_.row_ids[static_cast<size_t>(row)], batch_.seq_len, parts.size(),
                            batch_.seq_len - ignored, ignored),
                     kBoldText) +
             "\n";
    text_ +=
        painted(format("{:>7} {:>8} {:>7}  {:<20} {:>7}  {}", "index", "position", "token", "", "label", ""),
                kBoldText) +
        "\n";
    const int64_t begin = row * batch_.seq_len;
    const int64_t shown =
        options_.max_tokens > 0 ? std::min(options_.max_tokens, batch_.seq_len) : batch_.seq_len;
    for (int64_t i = begin; i < begin + shown; ++i) print_token(i, i - begin);
    if (shown < batch_.seq_len) text_ += format("{:>7} {} more tokens\n", "...", batch_.seq_len - shown);
    for (const auto& part : parts) print_text(part);
    text_ += "\n";
  }

  void print_text(const Part& part) {
    text_ +=
        painted(format("  --- document part, positions 0 to {} ---", part.end - part.begin - 1), kDimText) +
        "\n  ";
    for (int64_t i = part.begin; i < part.end; ++i) {
      const std::string word = tokenizer_.token_text(token(i));
      if (!options_.colour) {
        text_ += (i > part.begin ? "|" : "") + word;
      } else if (label(i) == kIgnoredLabel) {
        text_ += painted(word, kDimText);
      } else {
        text_ += painted(word, (i - part.begin) % 2 == 0 ? kEvenColour : kOddColour);
      }
    }
    text_ += "\n";
  }

  void print_token(int64_t i, int64_t in_row) {
    if (in_row > 0 && position(i) == 0)
      text_ += painted("        --- document boundary ---", kDimText) + "\n";
    const std::string start = format("{:>7} {:>8} {:>7}  {:<20} ", in_row, position(i), token(i),
                                     format("\"{}\"", tokenizer_.token_text(token(i))));
    if (label(i) == kIgnoredLabel) {
      text_ += painted(start + format("{:>7}  ignored", label(i)), kDimText) + "\n";
    } else {
      text_ += start + format("{:>7}  \"{}\"\n", label(i), tokenizer_.token_text(label(i)));
    }
  }

  const Batch& batch_;
  const Tokenizer& tokenizer_;
  const ShowOptions& options_;
  std::string text_;
};

}  // namespace

std::string render_batch(const Batch& batch, const Tokenizer& tokenizer, const ShowOptions& options) {
  return BatchPrinter(batch, tokenizer, options).print();
}

}  // namespace stepforge
