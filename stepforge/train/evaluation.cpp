// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/gather.h"
#include "stepforge/data/context_part.h"
#include "stepforge/kernels/reduce.h"

namespace stepforge {

namespace {

class EvaluationServices : public StepServices {
 public:
  explicit EvaluationServices(const Batch& batch) : batch_(batch) {}
  BatchTensors load_batch(int micro_batch) override { return BatchTensors(batch_); }
  void loss_ready(int micro_batch, const BatchTensors& batch, const LossResult& loss) override {
    loss_sum = at::empty({}, loss.token_loss.options().dtype(at::kDouble));
    sum_in_order(loss.token_loss, loss_sum);
    result = loss;
  }
  at::Tensor loss_sum;
  LossResult result;

 private:
  const Batch& batch_;
};

/// One rank's batch of a round.
struct BatchTally {
  int64_t rows = 0;
  int64_t valid_labels = 0;
  double loss_sum = 0.0;
  int64_t stopped = 0;
};

/// Gathers the tallies of all data ranks, in rank order. Ranks that read the same rows count once, but labels
/// of their parts are added, and each of them may ask to stop.
void gather(std::vector<BatchTally>& tallies, const GroupCommunicators& groups) {
  const RankLayout& layout = groups.layout();
  Communicator* const ranks = groups.at(layout.world_group, Lane::compute);
  if (ranks == nullptr) return;
  const std::vector<BatchTally> all = gather_values(*ranks, tallies);
  const auto same_rows = all.size() / static_cast<size_t>(layout.data_ranks);
  const auto same_tokens = same_rows / static_cast<size_t>(layout.dims.cp);
  tallies.clear();
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % same_rows == 0) {
      tallies.push_back(all[i]);
      continue;
    }
    BatchTally& sum = tallies.back();
    sum.stopped += all[i].stopped;
    if (i % same_tokens != 0) continue;
    sum.valid_labels += all[i].valid_labels;
    sum.loss_sum += all[i].loss_sum;
  }
}

bool stopped(const std::vector<BatchTally>& tallies) {
  return std::any_of(tallies.begin(), tallies.end(),
                     [](const BatchTally& tally) { return tally.stopped > 0; });
}

/// For a rank without a batch in the last round: it takes part in the collectives but adds nothing.
Batch masked(Batch batch) {
  std::fill(batch.labels.begin(), batch.labels.end(), kIgnoredLabel);
  batch.valid_labels = 0;
  return batch;
}

}  // namespace

BatchLoss evaluate_batch(Executor& executor, const Batch& batch, bool with_logits) {
  EvaluationServices services(batch);
  StepInputs inputs;
  inputs.with_logits = with_logits;
  executor.run(inputs, services);
  return {services.loss_sum.item<double>(), services.result.token_loss, services.result.logits};
}

EvaluationResult evaluate(Executor& executor, const RowStream& stream, int64_t rows, int64_t max_batches,
                          const std::function<bool()>& stop, const GroupCommunicators& groups,
                          const ContextPart& part) {
  const auto begin = std::chrono::steady_clock::now();
  EvaluationResult result;
  double loss_sum = 0.0;
  const int ranks = groups.layout().data_ranks;
  if (part.degree != groups.layout().dims.cp) {
    throw Error(format("evaluation of one of {} parts of rows on groups for {}", part.degree,
                       groups.layout().dims.cp));
  }
  for (int64_t first = 0; max_batches < 0 || first < max_batches; first += ranks) {
    const int64_t number = first + groups.layout().data_rank;
    const bool wanted = max_batches < 0 || number < max_batches;
    const Batch batch = wanted ? stream.rows(number * rows, rows) : Batch{};
    std::vector<BatchTally> tallies{{.rows = batch.rows, .stopped = stop && stop() ? 1 : 0}};
    gather(tallies, groups);
    // Rank order is batch order, so without context parallelism the sums are those of a single rank; rank 0
    // has the round's first batch.
    result.stopped = stopped(tallies);
    if (tallies.front().rows == 0 || result.stopped) break;
    const Batch own = take_part(batch.rows > 0 ? batch : masked(stream.rows(0, rows)), part);
    const BatchLoss loss = evaluate_batch(executor, own, false);
    tallies = {{.rows = batch.rows, .valid_labels = own.valid_labels, .loss_sum = loss.loss_sum}};
    gather(tallies, groups);
    for (const BatchTally& tally : tallies) {
      loss_sum += tally.loss_sum;
      result.valid_labels += tally.valid_labels;
      result.tokens += tally.rows * stream.seq_len();
    }
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  result.loss = loss_sum / static_cast<double>(result.valid_labels);
  result.perplexity = std::exp(result.loss);
  const auto bytes_per_token = stream.bytes_per_token();
  result.bits_per_byte = bytes_per_token ? result.loss / std::numbers::ln2 / *bytes_per_token
                                         : std::numeric_limits<double>::quiet_NaN();
  return result;
}

}  // namespace stepforge
