// SPDX-License-Identifier: Apache-2.0
// Tokenizers and texts from outside take memory in proportion to their size.
#include <gtest/gtest.h>

#include "stepforge/base/format.h"
#include "stepforge/base/staged.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_folder.h"
#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kSlack = 1 << 20;  // caches of fixed size

TEST(TextMemory, ATokenizerTakesAtMostTenTimesItsFile) {
  const int count = kSanitizer ? 5'000 : 100'000;
  Json json = good_definition();
  const auto first = static_cast<int>(json["model"]["vocab"].size());
  std::string words;
  for (int i = 0; i < count; ++i) words += format("\"word{}\":{},", i, first + i);
  std::string text = json.dump();
  text.insert(text.find("\"vocab\":{") + 9, words);
  const std::string end_of_text = "\"id\":259";
  text.replace(text.find(end_of_text), end_of_text.size(), format("\"id\":{}", first + count));
  const TempFolder folder;
  write_file_atomic(folder / "tokenizer.json", text);
  const auto bytes = static_cast<size_t>(std::filesystem::file_size(folder / "tokenizer.json"));
  json = Json();
  const AllocationMeter meter;
  const auto tokenizer = load_tokenizer(folder.path());
  EXPECT_LE(meter.peak(), 10 * bytes + kSlack)
      << static_cast<double>(meter.peak()) / static_cast<double>(bytes);
}

void expect_small_peak(const Tokenizer& tokenizer) {
  const std::string text(kSanitizer ? 1 << 18 : 1 << 22, 'a');
  const AllocationMeter meter;
  EXPECT_FALSE(tokenizer.encode(text).empty());
  EXPECT_LE(meter.peak(), 10 * text.size() + kSlack)
      << static_cast<double>(meter.peak()) / static_cast<double>(text.size());
}

TEST(TextMemory, ATextOfOneLetterTakesAtMostTenTimesItsSize) {
  expect_small_peak(*make_byte_tokenizer());
  // "aa", "aaaa", ...: at first every pair of letters can be merged.
  std::vector<TokenPair> merges = {token_pair('a', 'a')};
  for (int i = 0; i < 6; ++i) merges.push_back(token_pair(256 + i, 256 + i));
  expect_small_peak(*tokenizer_of(tokenizer_json(merges, kLlama3Pattern)));
}

}  // namespace
}  // namespace stepforge::testing
