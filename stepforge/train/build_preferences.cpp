// SPDX-License-Identifier: Apache-2.0
// The build step "preferences": the log-probabilities of the reference, computed once or read again.
#include <chrono>
#include <filesystem>
#include <memory>

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/pair_losses.h"
#include "stepforge/train/progress_log.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

namespace {

constexpr const char* kReferenceFile = "reference.safetensors";

void score_all(Trainer& trainer, const RowStream& train) {
  const auto begin = std::chrono::steady_clock::now();
  PreferenceData& data = trainer.preferences;
  const BatchLayout& rows = trainer.job.batch;
  const auto score = [&](const RowStream& stream, AnswerChoice answers) {
    ProgressLog progress(
        trainer, answers == AnswerChoice::own ? "reference" : "reference, mismatched answers", "rows");
    const auto stops = [&, done = int64_t{0}]() mutable {
      progress.log(done, *stream.total_rows());
      done += rows.rows_per_micro_batch * trainer.job.layout.data_ranks;
      return trainer.interrupted();
    };
    return score_pairs(data.loss, *trainer.evaluator, stream, rows.rows_per_micro_batch, rows.part, stops,
                       answers);
  };
  if (trainer.is_main())
    trainer.log.info("computing the log-probabilities of the reference, the model as it is now");
  const RowStream* const validation = trainer.data.validation.get();
  data.training = score(train, AnswerChoice::own);
  if (validation != nullptr) data.validation = score(*validation, AnswerChoice::own);
  if (data.loss.has_baseline) {
    data.mismatched_training = score(train, AnswerChoice::mismatched);
    if (validation != nullptr) data.mismatched_validation = score(*validation, AnswerChoice::mismatched);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (trainer.is_main())
    trainer.log.info("reference: {} {} in {:.1f} s", with_thousands(data.pairs()),
                     data.loss.judged ? "judged answers" : "pairs", seconds.count());
}

}  // namespace

void build_preferences(Trainer& trainer) {
  const Config& config = trainer.config;
  if (!config.preference.enabled()) return;
  PreferenceData& data = trainer.preferences;
  data.loss = find_pair_loss(config.preference);
  trainer.train_step->preferences = &data;
  if (!data.loss.has_reference) return;
  if (data.loss.has_baseline)
    trainer.train_step->baseline = [&trainer](const std::vector<Batch>& micro_batches) {
      return step_baseline(trainer.preferences, *trainer.evaluator, micro_batches);
    };
  const auto train = trainer.data.train->every_row();
  const auto& validation = trainer.data.validation;
  const std::string identity =
      content_hash(train->fingerprint() + (validation != nullptr ? validation->fingerprint() : ""));
  const std::filesystem::path file = std::filesystem::path(config.run_dir) / kReferenceFile;
  // A start from other weights, a checkpoint of another run included, has a reference of its own.
  if (trainer.last_saved_step >= 0) {
    const auto of_validation = [&] { return validation == nullptr ? PairTable() : PairTable(*validation); };
    data.training = PairTable(*train);
    data.validation = of_validation();
    if (data.loss.has_baseline) {
      data.mismatched_training = PairTable(*train);
      data.mismatched_validation = of_validation();
    }
    return load_references(file, identity, data);
  }
  score_all(trainer, *train);
  if (trainer.is_main()) save_references(file, data, identity);
}

}  // namespace stepforge
