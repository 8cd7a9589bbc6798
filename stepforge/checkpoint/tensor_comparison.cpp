// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/tensor_comparison.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

namespace {

// Enough for all differences between real models; limits the message for a crafted file with a million
// names.
constexpr size_t kMaxLines = 20'000;

std::string names_of(std::span<const DType> dtypes) {
  std::vector<std::string> names;
  for (const DType dtype : dtypes) names.emplace_back(safetensors_name(dtype));
  return join(names, ", ");
}

/// For matrices only: a part of a norm of another width would be meaningless.
bool only_rows_differ(const std::vector<int64_t>& left, const std::vector<int64_t>& right) {
  return left.size() == right.size() && left.size() > 1 &&
         std::equal(left.begin() + 1, left.end(), right.begin() + 1);
}

}  // namespace

void TensorComparison::expect(const std::string& name, const std::vector<int64_t>& shape,
                              std::span<const DType> dtypes) {
  known_.insert(name);
  const StoredTensor* stored = folder_.find(name);
  if (stored == nullptr) {
    found_.missing.push_back(format("missing: {} {}", name, shape_text(shape)));
    return;
  }
  if (std::find(dtypes.begin(), dtypes.end(), stored->dtype) == dtypes.end()) {
    found_.different.push_back(format("different dtype: {} is {}, expected {}", name,
                                      safetensors_name(stored->dtype), names_of(dtypes)));
    return;
  }
  if (stored->shape == shape) {
    ++found_.equal;
    usable_[name] = whole_slice(shape);
    return;
  }
  const bool rows = only_rows_differ(stored->shape, shape);
  (rows ? found_.other_rows : found_.different)
      .push_back(format("different shape: {} is {}, expected {}", name, shape_text(stored->shape),
                        shape_text(shape)));
  if (rows) usable_[name] = whole_slice(stored->shape[0] < shape[0] ? stored->shape : shape);
}

void TensorComparison::allow(const std::string& name,
                             const std::function<std::string(const StoredTensor&)>& fault) {
  known_.insert(name);
  const StoredTensor* stored = folder_.find(name);
  if (stored == nullptr) return;
  const std::string text = fault(*stored);
  if (!text.empty()) found_.different.push_back(format("{}: {}", name, text));
}

void TensorComparison::accept(const std::string& name, const std::vector<int64_t>& shape) {
  ++found_.equal;
  usable_[name] = whole_slice(shape);
}

std::optional<TensorSlice> TensorComparison::usable(std::string_view name) const {
  const auto found = usable_.find(name);
  if (found == usable_.end()) return std::nullopt;
  return found->second;
}

void TensorComparison::finish(const std::string& summary,
                              const std::function<bool(std::string_view)>& ignored,
                              TensorDifferences* accepted) {
  for (const std::string& name : folder_.names()) {
    if (known_.contains(name) || ignored(name)) continue;
    found_.unexpected.push_back(format("unexpected: {}", quoted_for_message(name)));
  }
  if (accepted != nullptr) *accepted = found_;
  if (found_.none() || (accepted != nullptr && !usable_.empty())) return;
  std::vector<std::string> lines;
  for (const auto* list : {&found_.missing, &found_.unexpected, &found_.different, &found_.other_rows})
    lines.insert(lines.end(), list->begin(), list->end());
  std::string text =
      format("{}: {} tensors missing, {} unexpected, {} different", summary, found_.missing.size(),
             found_.unexpected.size(), found_.different.size() + found_.other_rows.size());
  const size_t shown = std::min(lines.size(), kMaxLines);
  for (size_t i = 0; i < shown; ++i) text += "\n  " + lines[i];
  if (shown < lines.size()) text += format("\n  and {} more", lines.size() - shown);
  throw Error(text);
}

}  // namespace stepforge
