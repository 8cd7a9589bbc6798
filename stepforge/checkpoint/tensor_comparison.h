// SPDX-License-Identifier: Apache-2.0
// Compares the tensors that a model needs with those in files, and reports every difference.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/tensorfile/tensor_folder.h"

namespace stepforge {

/// How files differ from a model, one line for each difference.
struct TensorDifferences {
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::vector<std::string> different;  ///< in type or shape, so that nothing of the tensor can be used
  std::vector<std::string>
      other_rows;     ///< matrices, only in the number of rows: the rows that both have can be used
  int64_t equal = 0;  ///< tensors that do not differ

  bool none() const {
    return missing.empty() && unexpected.empty() && different.empty() && other_rows.empty();
  }
};

class TensorComparison {
 public:
  /// `folder` must outlive the object.
  explicit TensorComparison(const TensorFolder& folder) : folder_(folder) {}

  /// The model needs this tensor, in one of `dtypes`: records a difference if it is missing or differs.
  void expect(const std::string& name, const std::vector<int64_t>& shape, std::span<const DType> dtypes);
  /// The folder may hold this tensor: if it does, records the difference that `fault` returns, unless "".
  void allow(const std::string& name, const std::function<std::string(const StoredTensor&)>& fault);
  /// All of tensor `name` can be used, although the folder stores it in other, allowed tensors.
  void accept(const std::string& name, const std::vector<int64_t>& shape);
  /// Records every tensor that is neither expected nor allowed nor `ignored`. If there is any difference: with `accepted`,
  /// stores them there, and throws Error only if no tensor can be used; without it throws Error: `summary`, the number of
  /// differences of each kind, then one difference per line.
  void finish(const std::string& summary, const std::function<bool(std::string_view)>& ignored,
              TensorDifferences* accepted = nullptr);
  /// The part of an expected tensor that can be used; nullopt if none.
  std::optional<TensorSlice> usable(std::string_view name) const;

 private:
  const TensorFolder& folder_;
  std::set<std::string, std::less<>> known_;
  std::map<std::string, TensorSlice, std::less<>> usable_;
  TensorDifferences found_;
};

}  // namespace stepforge
