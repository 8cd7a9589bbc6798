// SPDX-License-Identifier: Apache-2.0
// Shares of a finished data set for training, validation and test, by the order of its documents.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace stepforge {

/// Megatron's --split: the first documents are for training, the next for validation, the last for the test. Stable
/// only while the data set does not change.
class SplitRatios {
 public:
  /// "969,30,1", one to three numbers that are not negative, in any unit. Throws UsageError for anything else, or if
  /// the first is 0.
  static SplitRatios parse(std::string_view text);

  /// The borders of the three parts among `documents`: part i has the documents [bounds[i], bounds[i + 1]). Rounded
  /// as Megatron does.
  std::array<int64_t, 4> bounds(int64_t documents) const;
  /// Whether part i has a share.
  bool has(size_t part) const { return shares_[part] > 0.0; }

 private:
  std::array<double, 3> shares_{};
};

}  // namespace stepforge
