// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/source_losses.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

namespace stepforge {
namespace {

/// Rows of two tokens from these sources; labels of 0 count.
Batch batch_of(std::vector<int32_t> sources, std::vector<int32_t> labels) {
  Batch batch;
  batch.rows = std::ssize(sources);
  batch.seq_len = 2;
  batch.sources = std::move(sources);
  batch.labels = std::move(labels);
  return batch;
}

using Means = std::vector<std::pair<std::string, double>>;

TEST(SourceLosses, AreMeansOverTheLabelsOfEachSource) {
  SourceLosses losses({"books", "web", "code"}, at::kCPU);
  losses.add(batch_of({1, 0, 1}, {0, 0, 0, kIgnoredLabel, 0, 0}),
             at::tensor({1.0F, 2.0F, 7.0F, 0.0F, 3.0F, 4.0F}));
  losses.add(batch_of({0, kNoSource}, {0, 0, kIgnoredLabel, kIgnoredLabel}),
             at::tensor({1.0F, 4.0F, 0.0F, 0.0F}));
  EXPECT_EQ(losses.take(nullptr), (Means{{"books", 4.0}, {"web", 2.5}})) << "code had no label";
  EXPECT_TRUE(losses.take(nullptr).empty()) << "they start again";
}

TEST(SourceLosses, OfASingleSourceAreLeftOut) {
  SourceLosses losses({"books"}, at::kCPU);
  losses.add(batch_of({0}, {0, 0}), at::tensor({1.0F, 4.0F}));
  EXPECT_TRUE(losses.take(nullptr).empty());
}

}  // namespace
}  // namespace stepforge
