// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/split_ratios.h"

#include <charconv>
#include <cmath>
#include <numeric>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

SplitRatios SplitRatios::parse(std::string_view text) {
  SplitRatios ratios;
  const auto refuse = [&] {
    throw UsageError(
        format("\"{}\" is not a split: expected up to three numbers for training, validation and test, "
               "such as \"969,30,1\"",
               text));
  };
  size_t count = 0;
  for (size_t begin = 0; begin <= text.size(); ++count) {
    const size_t end = std::min(text.size(), text.find(',', begin));
    std::string_view word = text.substr(begin, end - begin);
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    double share = 0.0;
    const auto [rest, failure] = std::from_chars(word.data(), word.data() + word.size(), share);
    const bool read = failure == std::errc() && rest == word.data() + word.size();
    if (count == ratios.shares_.size() || !read || !std::isfinite(share) || share < 0.0) refuse();
    ratios.shares_[count] = share;
    begin = end + 1;
  }
  const double sum = std::accumulate(ratios.shares_.begin(), ratios.shares_.end(), 0.0);
  if (!ratios.has(0) || !std::isfinite(sum)) refuse();
  for (double& share : ratios.shares_) share /= sum;
  return ratios;
}

std::array<int64_t, 4> SplitRatios::bounds(int64_t documents) const {
  std::array<int64_t, 4> borders{};
  double before = 0.0;
  for (size_t part = 0; part < shares_.size(); ++part) {
    before += shares_[part];
    // To even, as Python's round().
    borders[part + 1] = static_cast<int64_t>(std::nearbyint(before * static_cast<double>(documents)));
  }
  borders.back() = documents;
  return borders;
}

}  // namespace stepforge
