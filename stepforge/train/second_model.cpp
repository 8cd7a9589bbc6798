// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/second_model.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/checkpoint/initial_adapter.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/comm/gather.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/nn/make_model.h"
#include "stepforge/plan/job.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/storage/read_only.h"
#include "stepforge/tensorfile/hf_index.h"
#include "stepforge/tensorfile/manifest.h"

namespace stepforge {

namespace {

/// The spelling of a token, "" if there is no such id.
std::string spelling(const Tokenizer& tokenizer, int32_t id) {
  try {
    return std::string(tokenizer.token_bytes(id));
  } catch (const Error&) {
    return "";
  }
}

/// Throws UsageError unless the tokens of the run are tokens of the model with the same ids, which may have more.
void require_same_tokens(const Trainer& trainer, const SecondModelFiles& files) {
  const Tokenizer& own = *trainer.tokenizer;
  const int64_t rows = files.known.config.model.vocab_size;
  if (rows < own.vocab_size())
    throw UsageError(format("{} has a vocabulary of {} tokens, and the run's tokenizer {}", files.setting,
                            rows, own.vocab_size()));
  const std::unique_ptr<Tokenizer> other = files.known.load_tokenizer();
  if (other == nullptr || other->fingerprint() == own.fingerprint()) return;
  for (int32_t id = 0; id < own.vocab_size(); ++id) {
    const std::string token = spelling(own, id);
    if (token.empty() || token == spelling(*other, id)) continue;
    throw UsageError(format(
        "{} has another tokenizer than the run: token {} is {} here and another one there; a model predicts the "
        "tokens of its own tokenizer: choose one of the same family",
        files.setting, id, own.token_text(id)));
  }
}

Config second_config(const Trainer& trainer, const KnownModel& known) {
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

Job second_job(const Trainer& trainer, const KnownModel& known) {
  const Config config = second_config(trainer, known);
  ModelSpec spec = plan_model(config);
  for (UnitSpec& unit : spec.units) store_as_read(unit, config.precision.compute);
  return plan_job(config, trainer.place, spec, spec);
}

std::shared_ptr<const GroupCommunicators> second_groups(const Trainer& trainer, const Job& job,
                                                        const StepProgram& program, const std::string& name) {
  if (trainer.world() == nullptr) return std::make_shared<const GroupCommunicators>();
  return std::make_shared<const GroupCommunicators>(*trainer.world(), job.layout, group_lanes(program), name,
                                                    trainer.device);
}

}  // namespace

std::string model_fingerprint(const KnownModel& model) {
  if (has_manifest(model.weights))
    return content_hash(read_file(model.weights / kManifestFileName) +
                        read_file(model.weights / kStateFileName));
  constexpr int64_t kSample = 4096;
  std::string all;
  std::vector<std::byte> sample;
  const TensorFolder weights = open_hf_weights(model.weights);
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

SecondModelFiles open_second_model(std::string setting, KnownModel known) {
  if (!has_manifest(known.weights)) {
    TensorFolder weights = open_hf_weights(known.weights);
    return {std::move(setting), std::move(known), std::move(weights), ""};
  }
  const FoundCheckpoint found = verify_checkpoint(known.weights);
  return {std::move(setting), std::move(known), checkpoint_tensors(found), found.frozen.taken};
}

void require_reads_rows(const Trainer& trainer, const SecondModelFiles& files) {
  const ModelConfig& model = files.known.config.model;
  if (model.scores())
    throw UsageError(format("{} is a reward model, which predicts no tokens", files.setting));
  if (model.max_position < trainer.config.training.seq_len)
    throw UsageError(format("{} has a context of {} tokens; set training.seq_len (now {}) to that or less",
                            files.setting, model.max_position, trainer.config.training.seq_len));
  require_same_tokens(trainer, files);
}

bool is_on_rank0(const Trainer& trainer, const std::filesystem::path& file) {
  const bool own = std::filesystem::exists(file);
  Communicator* const ranks = trainer.all_ranks.get();
  return ranks == nullptr ? own : gather_values(*ranks, std::array{static_cast<char>(own)}).front() != 0;
}

struct SecondModel::Parts {
  Parts(const Trainer& trainer, const SecondModelFiles& files, const std::string& name)
      : job(second_job(trainer, files.known)),
        program(plan_evaluation(job)),
        groups(second_groups(trainer, job, program, name)),
        store(job.part.units, job.layout, {.with_gradient = false, .compute = trainer.device}, groups),
        model(make_model(job.part, store.lookup(),
                         {.context_length = trainer.config.training.seq_len, .device = store.device()})),
        executor(program, model, store) {
    const KnownModel& known = files.known;
    const auto taken = initial_adapter_of(known.folder, known.config.adapter, job.whole, files.taken);
    import_weights(files.weights, job.model(), store, {.taken = taken ? &*taken : nullptr});
  }

  Job job;
  StepProgram program;
  std::shared_ptr<const GroupCommunicators> groups;
  ModelStore store;
  Model model;
  Executor executor;
};

SecondModel::SecondModel(const Trainer& trainer, const SecondModelFiles& files, const std::string& name)
    : parts_(std::make_unique<Parts>(trainer, files, name)) {}

SecondModel::~SecondModel() {
  parts_.reset();
  return_free_cpu_memory();
}

const Job& SecondModel::job() const {
  return parts_->job;
}

Executor& SecondModel::executor() {
  return parts_->executor;
}

}  // namespace stepforge
