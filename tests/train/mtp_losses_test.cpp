// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/mtp_losses.h"

#include <thread>

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "stepforge/comm/shared_memory.h"
#include "stepforge/metrics/names.h"

namespace stepforge::testing {
namespace {

/// A row of three tokens, of which the first `labels` have one.
BatchTensors batch_with(int64_t labels) {
  Batch batch = empty_batch(3, 1);
  append_row({.tokens = {1, 2, 3, 4}, .document_starts = {}, .counted = {}}, 0, batch);
  for (size_t i = static_cast<size_t>(labels); i < 3; ++i) batch.labels[i] = kIgnoredLabel;
  batch.valid_labels = labels;
  return BatchTensors(std::move(batch));
}

/// Megatron-LM#7452: a mean of the means of ranks, 14/3, where that of all labels is 4.
TEST(MtpLosses, AreMeansOverAllLabelsOfAllRanks) {
  const std::vector<std::pair<int64_t, std::vector<float>>> ranks = {
      {2, {1, 3, 0}}, {1, {5, 0, 0}}, {1, {7, 0, 0}}, {0, {0, 0, 0}}};
  const auto worlds = thread_worlds(static_cast<int>(ranks.size()));
  std::vector<MetricsRecord> records(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto all = worlds[rank]->group("all", {0, 1, 2, 3});
      MtpLosses losses(2, at::kCPU);
      losses.add(1, batch_with(ranks[rank].first), at::tensor(ranks[rank].second));
      losses.log(all.get(), records[rank]);
      MetricsRecord again;
      losses.log(all.get(), again);
      EXPECT_EQ(again.find(metric::mtp_loss(1)), std::nullopt) << "they start again";
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const MetricsRecord& record : records) {
    EXPECT_EQ(record.find("loss_metrics/mtp_1"), 4.0);
    EXPECT_EQ(record.find("loss_metrics/mtp_2"), std::nullopt) << "it had no label";
  }
}

}  // namespace
}  // namespace stepforge::testing
