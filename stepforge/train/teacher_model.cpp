// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/teacher_model.h"

#include <algorithm>
#include <span>

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/stack.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

/// Where the probability of a token is 0 in fp32; its log stays finite.
constexpr double kLeastLogProb = -100.0;

/// Tokens that both models have.
int64_t common_tokens(const Trainer& trainer, int64_t of_teacher) {
  return std::min(of_teacher, trainer.config.model.vocab_size);
}

class TeacherServices : public StepServices {
 public:
  TeacherServices(const Batch& batch, c10::Device device) : batch_(batch), device_(device) {}
  BatchTensors load_batch(int, int) override { return BatchTensors(batch_, device_); }
  void loss_ready(int, const BatchTensors&, const LossResult& loss) override { result = loss; }
  LossResult result;

 private:
  const Batch& batch_;
  c10::Device device_;
};

}  // namespace

void require_teacher_fits(const Trainer& trainer, const SecondModelFiles& teacher) {
  require_reads_rows(trainer, teacher);
  const int64_t tokens = common_tokens(trainer, teacher.known.config.model.vocab_size);
  const int64_t top_k = trainer.config.distillation.top_k;
  if (top_k > tokens)
    throw UsageError(
        format("distillation.top_k = {}, but the teacher has {} tokens of the model; set it to {} or less",
               top_k, tokens, tokens));
}

TeacherModel::TeacherModel(const Trainer& trainer, const SecondModelFiles& teacher)
    : model_(trainer, teacher, "teacher"), temperature_(trainer.config.distillation.temperature) {
  inputs_.name = "the teacher";
  inputs_.top = {.count = trainer.config.distillation.top_k,
                 .vocabulary = common_tokens(trainer, model_.job().whole.vocab_size)};
}

std::string TeacherModel::predict(const Batch& batch) {
  const ModelStore& store = model_.executor().store();
  TeacherServices services(batch, store.device());
  model_.executor().run(inputs_, services);
  store.groups().rethrow_failure();
  const BatchTensors on_host(batch);
  const at::Tensor labelled = on_host.labels.ne(kIgnoredLabel).nonzero().view({-1});
  const at::Tensor logits = services.result.top_logits.cpu().index_select(0, labelled);
  const at::Tensor ids = services.result.top_ids.cpu().index_select(0, labelled);
  // Divided by the probability of all k, as the normalization over the whole vocabulary cancels out.
  const at::Tensor log_probs =
      at::log_softmax(logits / temperature_, /*dim=*/1, at::kFloat).clamp_min_(kLeastLogProb);
  const at::Tensor rows = at::stack({ids.to(at::kFloat), log_probs}, 1).contiguous();
  const std::span<const std::byte> bytes = bytes_of(rows);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace stepforge
