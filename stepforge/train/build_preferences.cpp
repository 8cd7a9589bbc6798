// SPDX-License-Identifier: Apache-2.0
// The build steps "reference" and "preferences": the log-probabilities of the reference, computed once or read again.
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/pair_losses.h"
#include "stepforge/train/progress_log.h"
#include "stepforge/train/second_model.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

namespace {

constexpr const char* kReferenceFile = "reference.safetensors";

std::filesystem::path reference_file(const Trainer& trainer) {
  return std::filesystem::path(trainer.config.run_dir) / kReferenceFile;
}

/// Of the reference at the start of the run.
ReferenceIdentity identity_of_reference(const Trainer& trainer, const RowStream& train) {
  const RowStream* const validation = trainer.data.validation.get();
  return {
      .data = content_hash(train.fingerprint() + (validation != nullptr ? validation->fingerprint() : "")),
      .model = ""};
}

/// By the program of `executor`, whose model is the reference and takes rows as `rows` says; then rank 0 has the file.
void score_all(Trainer& trainer, Executor& executor, const BatchLayout& rows, const RowStream& train,
               const ReferenceIdentity& identity) {
  const auto begin = std::chrono::steady_clock::now();
  PreferenceData& data = trainer.preferences;
  const auto score = [&](const RowStream& stream, AnswerChoice answers) {
    ProgressLog progress(
        trainer, answers == AnswerChoice::own ? "reference" : "reference, mismatched answers", "rows");
    const auto stops = [&, done = int64_t{0}]() mutable {
      progress.log(done, *stream.total_rows());
      done += rows.rows_per_micro_batch * rows.data_ranks;
      return trainer.interrupted();
    };
    return score_pairs(data.loss, executor, stream, rows.rows_per_micro_batch, rows.part, stops, answers);
  };
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
  if (trainer.is_main()) save_references(reference_file(trainer), data, identity);
}

void score_by_second_model(Trainer& trainer, KnownModel known, const RowStream& train,
                           const ReferenceIdentity& identity) {
  const std::string& path = trainer.config.preference.reference;
  const SecondModelFiles files =
      open_second_model(format("preference.reference = \"{}\"", path), std::move(known));
  require_reads_rows(trainer, files);
  if (trainer.is_main())
    trainer.log.info("computing the log-probabilities of the reference {}: {}", path,
                     model_summary(files.known.config.model));
  SecondModel model(trainer, files, "reference");
  score_all(trainer, model.executor(), model.job().batch, train, identity);
  trainer.preferences.computed_now = true;
}

}  // namespace

void build_reference(Trainer& trainer) {
  const PreferenceConfig& preference = trainer.config.preference;
  if (preference.reference.empty()) return;
  PreferenceData& data = trainer.preferences;
  data.loss = find_pair_loss(preference);
  const auto train = trainer.data.train->every_row();
  ReferenceIdentity identity = identity_of_reference(trainer, *train);
  identity.model.reset();
  const std::filesystem::path file = reference_file(trainer);
  const bool is_there = is_on_rank0(trainer, file);
  // A run whose reference has been removed since continues with what it computed.
  if (!is_there || std::filesystem::exists(preference.reference)) {
    KnownModel known = known_model(preference.reference, trainer.config.model.plugins);
    identity.model = model_fingerprint(known);
    if (!is_there) return score_by_second_model(trainer, std::move(known), *train, identity);
  }
  prepare_references(data, *train, trainer.data.validation.get());
  load_references(file, identity, data);
  if (trainer.is_main())
    trainer.log.info("the log-probabilities of the reference {} are those in {}", preference.reference,
                     file.string());
}

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
  if (!config.preference.reference.empty()) {  // build_reference() has scored all
    if (data.computed_now && trainer.last_saved_step >= 0 && trainer.is_main())
      trainer.log.warning(
          "{} was missing and has been computed by {} as it is now: if the run began with another reference, stop it, and "
          "copy the file from the run folder that the checkpoint comes from",
          reference_file(trainer).string(), config.preference.reference);
    return;
  }
  const auto train = trainer.data.train->every_row();
  const ReferenceIdentity identity = identity_of_reference(trainer, *train);
  // A start from other weights, a checkpoint of another run included, has a reference of its own.
  if (trainer.last_saved_step >= 0) {
    prepare_references(data, *train, trainer.data.validation.get());
    return load_references(reference_file(trainer), identity, data);
  }
  if (trainer.is_main())
    trainer.log.info("computing the log-probabilities of the reference, the model as it is now");
  score_all(trainer, *trainer.evaluator, trainer.job.batch, *train, identity);
}

}  // namespace stepforge
