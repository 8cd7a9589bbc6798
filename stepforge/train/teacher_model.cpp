// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/teacher_model.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/stack.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/checkpoint/initial_adapter.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/nn/make_model.h"
#include "stepforge/plan/job.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/storage/read_only.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/tensorfile/hf_index.h"
#include "stepforge/tensorfile/manifest.h"

namespace stepforge {

namespace {

/// Where the probability of a token is 0 in fp32; its log stays finite.
constexpr double kLeastLogProb = -100.0;

/// The spelling of a token, "" if there is no such id.
std::string spelling(const Tokenizer& tokenizer, int32_t id) {
  try {
    return std::string(tokenizer.token_bytes(id));
  } catch (const Error&) {
    return "";
  }
}

/// Throws UsageError unless the tokens of the run are tokens of the teacher with the same ids, which may have more.
void require_same_tokens(const Trainer& trainer, const KnownModel& teacher) {
  const std::string& path = trainer.config.distillation.teacher;
  const Tokenizer& own = *trainer.tokenizer;
  if (teacher.config.model.vocab_size < own.vocab_size())
    throw UsageError(
        format("distillation.teacher = \"{}\" has a vocabulary of {} tokens, and the run's tokenizer {}",
               path, teacher.config.model.vocab_size, own.vocab_size()));
  const std::unique_ptr<Tokenizer> of_teacher = teacher.load_tokenizer();
  if (of_teacher == nullptr || of_teacher->fingerprint() == own.fingerprint()) return;
  for (int32_t id = 0; id < own.vocab_size(); ++id) {
    const std::string token = spelling(own, id);
    if (token.empty() || token == spelling(*of_teacher, id)) continue;
    throw UsageError(format(
        "distillation.teacher = \"{}\" has another tokenizer than the run: token {} is {} here and another one there; a "
        "teacher predicts the tokens of its own tokenizer: choose one of the same family",
        path, id, own.token_text(id)));
  }
}

Config teacher_config(const Trainer& trainer, const KnownModel& known) {
  const TrainingConfig& training = trainer.config.training;
  Config config;
  config.model = known.config.model;
  config.adapter = known.config.adapter;
  config.extensions = known.config.extensions;
  config.training.seq_len = training.seq_len;
  config.training.loss_chunk = training.loss_chunk;
  config.training.threads = trainer.job.config.training.threads;
  config.training.local_batch_size = 1;
  config.data.epoch_remainder = EpochRemainder::carry;
  config.precision.compute = trainer.config.precision.compute;
  return config;
}

Job teacher_job(const Trainer& trainer, const KnownModel& known) {
  const Config config = teacher_config(trainer, known);
  ModelSpec spec = plan_model(config);
  for (UnitSpec& unit : spec.units) store_as_read(unit, config.precision.compute);
  return plan_job(config, trainer.place, spec, spec);
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

std::shared_ptr<const GroupCommunicators> teacher_groups(const Trainer& trainer, const Job& job,
                                                         const StepProgram& program) {
  if (trainer.world() == nullptr) return std::make_shared<const GroupCommunicators>();
  return std::make_shared<const GroupCommunicators>(*trainer.world(), job.layout, group_lanes(program),
                                                    "teacher", trainer.device);
}

}  // namespace

std::string teacher_fingerprint(const KnownModel& teacher) {
  if (has_manifest(teacher.weights))
    return content_hash(read_file(teacher.weights / kManifestFileName) +
                        read_file(teacher.weights / kStateFileName));
  constexpr int64_t kSample = 4096;
  std::string all;
  std::vector<std::byte> sample;
  const TensorFolder weights = open_hf_weights(teacher.weights);
  for (const SafetensorsFile& file : weights.files()) {
    for (const TensorEntry& entry : file.tensors()) {
      sample.resize(static_cast<size_t>(std::min(kSample, entry.bytes())));
      file.read(entry, 0, sample);
      all += format("{} {} {} ", entry.name, dtype_name(entry.dtype), entry.bytes()) +
             content_hash(std::span<const std::byte>(sample)) + "\n";
    }
  }
  return content_hash(all);
}

TeacherFiles open_teacher(KnownModel known) {
  if (!has_manifest(known.weights)) {
    TensorFolder weights = open_hf_weights(known.weights);
    return {std::move(known), std::move(weights), ""};
  }
  const FoundCheckpoint found = verify_checkpoint(known.weights);
  return {std::move(known), checkpoint_tensors(found), found.frozen.taken};
}

void require_teacher_fits(const Trainer& trainer, const TeacherFiles& teacher) {
  const DistillationConfig& distillation = trainer.config.distillation;
  const ModelConfig& model = teacher.known.config.model;
  if (model.scores())
    throw UsageError(format("distillation.teacher = \"{}\" is a reward model, which predicts no tokens",
                            distillation.teacher));
  if (model.max_position < trainer.config.training.seq_len)
    throw UsageError(format(
        "distillation.teacher = \"{}\" has a context of {} tokens; set training.seq_len (now {}) to that or less",
        distillation.teacher, model.max_position, trainer.config.training.seq_len));
  require_same_tokens(trainer, teacher.known);
  const int64_t tokens = std::min(model.vocab_size, trainer.config.model.vocab_size);
  if (distillation.top_k > tokens)
    throw UsageError(
        format("distillation.top_k = {}, but the teacher has {} tokens of the model; set it to {} or less",
               distillation.top_k, tokens, tokens));
}

struct TeacherModel::Parts {
  Parts(Trainer& trainer, const TeacherFiles& teacher)
      : job(teacher_job(trainer, teacher.known)),
        program(plan_evaluation(job)),
        groups(teacher_groups(trainer, job, program)),
        store(job.part.units, job.layout, {.with_gradient = false, .compute = trainer.device}, groups),
        model(make_model(job.part, store.lookup(),
                         {.context_length = trainer.config.training.seq_len, .device = store.device()})),
        executor(program, model, store) {
    const KnownModel& known = teacher.known;
    const auto taken = initial_adapter_of(known.folder, known.config.adapter, job.whole, teacher.taken);
    import_weights(teacher.weights, job.model(), store, {.taken = taken ? &*taken : nullptr});
    inputs.name = "the teacher";
    inputs.top = {.count = trainer.config.distillation.top_k,
                  .vocabulary = std::min(job.whole.vocab_size, trainer.config.model.vocab_size)};
  }

  Job job;
  StepProgram program;
  std::shared_ptr<const GroupCommunicators> groups;
  ModelStore store;
  Model model;
  Executor executor;
  StepInputs inputs;
};

TeacherModel::TeacherModel(Trainer& trainer, const TeacherFiles& teacher)
    : parts_(std::make_unique<Parts>(trainer, teacher)) {}

TeacherModel::~TeacherModel() {
  parts_.reset();
  return_free_cpu_memory();
}

std::string TeacherModel::predict(const Batch& batch) {
  TeacherServices services(batch, parts_->store.device());
  parts_->executor.run(parts_->inputs, services);
  parts_->groups->rethrow_failure();
  const BatchTensors on_host(batch);
  const at::Tensor labelled = on_host.labels.ne(kIgnoredLabel).nonzero().view({-1});
  const at::Tensor logits = services.result.top_logits.cpu().index_select(0, labelled);
  const at::Tensor ids = services.result.top_ids.cpu().index_select(0, labelled);
  // Divided by the probability of all k, as the normalization over the whole vocabulary cancels out.
  const at::Tensor log_probs = at::log_softmax(logits, /*dim=*/1, at::kFloat).clamp_min_(kLeastLogProb);
  const at::Tensor rows = at::stack({ids.to(at::kFloat), log_probs}, 1).contiguous();
  const std::span<const std::byte> bytes = bytes_of(rows);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace stepforge
