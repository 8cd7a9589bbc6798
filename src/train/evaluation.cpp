#include "train/evaluation.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <numbers>

namespace stepforge {

namespace {

class OneBatch : public StepServices {
 public:
  explicit OneBatch(const Batch& batch) : batch_(batch) {}
  BatchTensors load_batch(int micro_batch) override { return BatchTensors(batch_); }
  void loss_ready(int micro_batch, const BatchTensors& batch, const LossResult& loss) override {
    result = loss;
  }
  LossResult result;

 private:
  const Batch& batch_;
};

}  // namespace

LossResult evaluate_batch(Executor& executor, const Batch& batch, bool with_logits) {
  OneBatch services(batch);
  StepInputs inputs;
  inputs.with_logits = with_logits;
  executor.run(inputs, services);
  return services.result;
}

EvaluationResult evaluate(Executor& executor, const RowStream& stream, int64_t rows, int64_t max_batches,
                          const std::function<bool()>& stop) {
  const auto begin = std::chrono::steady_clock::now();
  EvaluationResult result;
  double loss_sum = 0.0;
  int64_t first_row = 0;
  for (int64_t number = 0; max_batches < 0 || number < max_batches; ++number) {
    if (stop && stop()) break;
    const Batch batch = stream.rows(first_row, rows);
    if (batch.rows == 0) break;
    first_row += batch.rows;
    loss_sum += evaluate_batch(executor, batch, /*with_logits=*/false).loss_sum;
    result.valid_labels += batch.valid_labels;
    result.tokens += batch.rows * batch.seq_len;
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
