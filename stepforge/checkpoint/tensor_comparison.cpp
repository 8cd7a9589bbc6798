// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/tensor_comparison.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

namespace {

// Enough for all differences between real models; limits the message for a hostile file of a million names.
constexpr size_t kMaxLines = 20'000;

std::string names_of(std::span<const DType> dtypes) {
  std::vector<std::string> names;
  for (const DType dtype : dtypes) names.emplace_back(safetensors_name(dtype));
  return join(names, ", ");
}

}  // namespace

void TensorComparison::expect(const std::string& name, const std::vector<int64_t>& shape,
                              std::span<const DType> dtypes) {
  known_.insert(name);
  const StoredTensor* stored = folder_.find(name);
  if (stored == nullptr) {
    missing_.push_back(format("missing: {} {}", name, shape_text(shape)));
    return;
  }
  if (stored->shape != shape) {
    different_.push_back(
        format("different shape: {} is {}, expected {}", name, shape_text(stored->shape), shape_text(shape)));
  }
  if (std::find(dtypes.begin(), dtypes.end(), stored->dtype) == dtypes.end()) {
    different_.push_back(format("different type: {} is {}, expected {}", name,
                                safetensors_name(stored->dtype), names_of(dtypes)));
  }
}

void TensorComparison::allow(const std::string& name,
                             const std::function<std::string(const StoredTensor&)>& fault) {
  known_.insert(name);
  const StoredTensor* stored = folder_.find(name);
  if (stored == nullptr) return;
  const std::string text = fault(*stored);
  if (!text.empty()) different_.push_back(format("{}: {}", name, text));
}

void TensorComparison::finish(const std::string& summary,
                              const std::function<bool(std::string_view)>& ignored) {
  for (const std::string& name : folder_.names()) {
    if (known_.contains(name) || ignored(name)) continue;
    unexpected_.push_back(format("unexpected: {}", quoted_for_message(name)));
  }
  if (missing_.empty() && unexpected_.empty() && different_.empty()) return;
  std::vector<std::string> lines;
  for (auto* list : {&missing_, &unexpected_, &different_}) {
    std::move(list->begin(), list->end(), std::back_inserter(lines));
  }
  std::string text = format("{}: {} tensors missing, {} unexpected, {} different", summary, missing_.size(),
                            unexpected_.size(), different_.size());
  const size_t shown = std::min(lines.size(), kMaxLines);
  for (size_t i = 0; i < shown; ++i) text += "\n  " + lines[i];
  if (shown < lines.size()) text += format("\n  and {} more", lines.size() - shown);
  throw Error(text);
}

}  // namespace stepforge
