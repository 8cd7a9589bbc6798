// SPDX-License-Identifier: Apache-2.0
// Compares the tensors that a model needs with those in files, and reports every difference in one error.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/tensorfile/tensor_folder.h"

namespace stepforge {

class TensorComparison {
 public:
  /// `folder` must outlive the object.
  explicit TensorComparison(const TensorFolder& folder) : folder_(folder) {}

  /// The model needs this tensor, in one of `dtypes`: records a difference if it is missing or differs.
  void expect(const std::string& name, const std::vector<int64_t>& shape, std::span<const DType> dtypes);
  /// The folder may hold this tensor: if it does, records the difference that `fault` returns, unless "".
  void allow(const std::string& name, const std::function<std::string(const StoredTensor&)>& fault);
  /// Records every tensor that is neither expected nor allowed nor `ignored`, and throws Error if there is
  /// any difference: `summary`, the number of differences of each kind, then one difference per line.
  void finish(const std::string& summary, const std::function<bool(std::string_view)>& ignored);

 private:
  const TensorFolder& folder_;
  std::set<std::string, std::less<>> known_;
  std::vector<std::string> missing_;
  std::vector<std::string> unexpected_;
  std::vector<std::string> different_;
};

}  // namespace stepforge
