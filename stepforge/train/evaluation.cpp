// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <numbers>
#include <optional>
#include <string>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/data/context_part.h"
#include "stepforge/kernels/reduce.h"
#include "stepforge/train/step_scalars.h"

namespace stepforge {

namespace {

class EvaluationServices : public StepServices {
 public:
  EvaluationServices(const Batch& batch, const ModelStore& store, const StepScalars& scalars)
      : batch_(batch), device_(store.device()), layout_(store.groups().layout()), scalars_(scalars) {
    scalars_.begin(batch.loss_weight(), batch.valid_labels, batch.real_tokens, layout_.data_ranks);
  }
  void count_labels(Communicator& ranks) override { scalars_.sum_counts(ranks, layout_); }
  BatchTensors load_batch(int micro_batch, int ahead) override { return BatchTensors(batch_, device_); }
  void loss_ready(int micro_batch, const BatchTensors& batch, const LossResult& loss) override {
    sum_in_order(loss.token_loss, scalars_.loss_sums.select(0, micro_batch));
    result = loss;
  }
  void share_loss(Communicator& stages) override { scalars_.share_losses(stages); }
  void reduce_loss(Communicator& ranks) override { scalars_.gather_losses(ranks); }
  LossResult result;

 private:
  const Batch& batch_;
  const at::Device device_;
  const RankLayout& layout_;
  const StepScalars& scalars_;
};

/// The `count` rows of this rank from `first` on. `rows` rows of padding for a rank without a batch in the last round, which
/// takes part in the collectives but adds nothing, or if the rows cannot be read; `fault` then says why.
Batch rows_or_padding(const RowStream& stream, int64_t first, int64_t count, int64_t rows,
                      AnswerChoice answers, std::string& fault) {
  try {
    if (count > 0) return stream.rows(first, count, answers);
  } catch (const std::exception& failure) {
    fault = failure.what();
  }
  return padding_batch(stream.seq_len(), rows);
}

int64_t rows_to_evaluate(const RowStream& stream, int64_t rows, int64_t max_batches) {
  const std::optional<int64_t> total = stream.total_rows();
  if (!total) throw Error("evaluation reads a stream once, but it is endless");
  return max_batches < 0 || max_batches > *total / rows ? *total : max_batches * rows;
}

}  // namespace

BatchLoss evaluate_batch(Executor& executor, const Batch& batch, bool with_logits) {
  const StepScalars scalars = step_scalars(executor.program(), executor.store());
  EvaluationServices services(batch, executor.store(), scalars);
  StepInputs inputs;
  inputs.name = "evaluation";
  inputs.with_logits = with_logits;
  executor.run(inputs, services);
  executor.store().groups().rethrow_failure();
  return {HostScalars(scalars)(scalars.loss_sums.select(0, 0)), services.result.token_loss,
          services.result.logits};
}

EvaluationResult evaluate(Executor& executor, const RowStream& stream, int64_t rows, int64_t max_batches,
                          const std::function<bool()>& stop, const ContextPart& part,
                          const TokenLosses& on_losses, AnswerChoice answers) {
  const auto begin = std::chrono::steady_clock::now();
  const RankLayout& layout = executor.store().groups().layout();
  if (part.degree != layout.dims.cp) {
    throw Error(
        format("evaluation of one of {} parts of rows on groups for {}", part.degree, layout.dims.cp));
  }
  const int64_t all_rows = rows_to_evaluate(stream, rows, max_batches);
  const StepScalars scalars = step_scalars(executor.program(), executor.store());
  StepInputs inputs;
  inputs.name = "evaluation";
  EvaluationResult result;
  double loss_sum = 0.0;
  // In each round every data rank has a batch; the last round may lack some.
  const int64_t round = rows * layout.data_ranks;
  for (int64_t first = 0; first < all_rows; first += round) {
    const int64_t own_first = first + rows * layout.data_rank;
    const int64_t own_rows = std::min(rows, all_rows - own_first);
    std::string fault;
    const Batch batch = take_part(rows_or_padding(stream, own_first, own_rows, rows, answers, fault), part);
    EvaluationServices services(batch, executor.store(), scalars);
    scalars.interrupted.fill_(stop && stop());
    scalars.without_rows.fill_(!fault.empty());
    executor.run(inputs, services);
    const HostScalars host(scalars);
    executor.store().groups().rethrow_failure();
    if (!fault.empty()) throw UnreadableRows(fault);
    if (host(scalars.without_rows) != 0.0)
      throw UnreadableRows("another rank could not read its rows of the validation data; its error says why");
    result.stopped = host(scalars.interrupted) != 0.0;
    if (result.stopped) break;
    if (on_losses && services.result.token_loss.defined()) on_losses(batch, services.result.token_loss);
    // Rank order is batch order, so without context parallelism the sum is that of a single rank.
    for (int64_t rank = 0; rank < scalars.gathered_losses.size(0); ++rank)
      loss_sum += host(scalars.gathered_losses.select(0, rank).select(0, 0));
    result.valid_labels += static_cast<int64_t>(host(scalars.valid_labels));
    result.tokens += static_cast<int64_t>(host(scalars.tokens));
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
