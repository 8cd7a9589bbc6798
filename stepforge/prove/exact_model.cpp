// SPDX-License-Identifier: Apache-2.0
#include "stepforge/prove/exact_model.h"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/round.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/parallel_plans.h"
#include "stepforge/data/context_part.h"
#include "stepforge/modelspec/pair_loss.h"
#include "stepforge/nn/make_model.h"
#include "stepforge/plan/job_mesh.h"
#include "stepforge/prove/exact_entries.h"
#include "stepforge/prove/exact_rounding.h"
#include "stepforge/prove/exact_teacher.h"
#include "stepforge/storage/context_collectives.h"
#include "stepforge/storage/tensor_collectives.h"

namespace stepforge {

namespace {

/// Masks labels by the row's index in its step, so that kExactLabels remain in each step, also of those of later tokens. Of
/// pairs of answers, kExactPairs remain.
class ExactLoader : public PrefetchLoader {
 public:
  ExactLoader(const Trainer& trainer)
      : PrefetchLoader(trainer.data.train, trainer.job.batch, 2),
        rows_(trainer.job.batch.rows_per_step),
        ahead_(trainer.job.batch.ahead),
        on_pairs_(trainer.config.preference.enabled()),
        is_judged_(trainer.config.preference.unpaired()) {}

  Batch next() override {
    Batch batch = PrefetchLoader::next();
    mask(batch, 0);
    for (size_t i = 0; i < batch.ahead.size(); ++i) mask(batch.ahead[i], static_cast<int64_t>(i) + 1);
    if (on_pairs_) drop_pairs(batch);
    for (Batch& mismatched : batch.mismatched) drop_pairs(mismatched);
    return batch;
  }

 private:
  /// A label is masked, or not, at all depths alike; those of a pair all or none.
  void mask(Batch& batch, int64_t depth) const {
    batch.valid_labels = 0;
    const std::vector<TokenRange> held = token_ranges(batch.part, batch.row_length());
    size_t i = 0;
    for (const uint64_t id : batch.row_ids) {
      const int64_t labels = share_of(id, kExactLabels);
      const bool has_pair = share_of(id, kExactPairs) > 0;
      for (const TokenRange& range : held) {
        for (int64_t position = range.begin; position < range.begin + range.size; ++position, ++i) {
          // Of the first tokens of a row there is no earlier one that predicts their labels.
          const int64_t predicted = position + depth - ahead_;
          const bool counts =
              on_pairs_ ? has_pair : predicted >= 0 && 5 * predicted % batch.row_length() < labels;
          if (!counts) batch.labels[i] = kIgnoredLabel;
          batch.valid_labels += batch.labels[i] == kIgnoredLabel ? 0 : 1;
        }
      }
    }
  }

  /// Of each row the pair that it holds, if that remains.
  void drop_pairs(Batch& batch) const {
    const auto has_own = [&](size_t row) {
      return batch.pairs[row].answers[0].begin / batch.row_length() == static_cast<int64_t>(row);
    };
    std::vector<AnswerPair> kept;
    for (size_t row = 0; row < batch.row_ids.size(); ++row) {
      if (batch.pairs.size() != batch.row_ids.size() || !has_own(row))
        throw Error(format("{} pairs of answers in {} rows: each row of an exact model has one of its own",
                           batch.pairs.size(), batch.rows));
      const AnswerPair& pair = batch.pairs[row];
      if (share_of(batch.row_ids[row], kExactPairs) == 0) continue;
      if (!is_judged_ && pair.answers[0].labels != kExactAnswer)
        throw Error(format("the better answer of pair {} has {} tokens, not {}: sums of steps are not exact",
                           pair.number, pair.answers[0].labels, kExactAnswer));
      kept.push_back(pair);
    }
    batch.pairs = std::move(kept);
  }

  /// What row `id` has of `total` in a step. Rows 4 to 6 have none, the others equally many, of which the first get what is
  /// left.
  int64_t share_of(uint64_t id, int64_t total) const {
    const int64_t row = static_cast<int64_t>(id) % rows_;
    if (row >= 4 && row < 7) return 0;
    const int64_t sharing = rows_ - 3;
    const int64_t index = row < 4 ? row : row - 3;
    return total / sharing + (index < total % sharing ? 1 : 0);
  }

  int64_t rows_;  ///< of a step
  int64_t ahead_;
  bool on_pairs_;  ///< or judged answers
  bool is_judged_;
};

/// A loss whose derivatives are small multiples of the unit of gradients: by a log-probability or score 0 or beta, and by the
/// log-probability of a better answer that is learned by itself too, 1 / kExactAnswer more. It compares what `loss` does.
PairLoss exact_pair_loss(const PairLoss& loss) {
  // A score has no large error that is multiplied with it.
  const double units = loss.scores ? kExactLimit : 1.0;
  return {.form = PairForm::hinge,
          .judged = loss.judged,
          .has_reference = loss.has_reference,
          .scores = loss.scores,
          .beta = units * static_cast<double>(kExactPairs) / static_cast<double>(kExactLabels),
          .sft_weight = loss.sft_weight > 0.0 && !loss.judged ? 1.0 : 0.0,
          .has_baseline = loss.has_baseline};
}

void snap(const ModelStore& store) {
  for (size_t u = 0; u < store.size(); ++u) {
    at::Tensor master = store.unit(u).master();
    // Adding 0 makes negative zeros positive.
    master.copy_(at::clamp(at::round(master * 4.0) / 4.0, -1.0, 1.0) + 0.0);
  }
}

class Snap : public Callback {
 public:
  std::string_view name() const override { return "snap"; }
  void step_end(Trainer& trainer) override {
    if (!trainer.config.preference.enabled() && trainer.last_step.valid_labels != kExactLabels) {
      throw Error(format("the step has {} valid labels, not {}: its sums are not exact",
                         trainer.last_step.valid_labels, kExactLabels));
    }
    snap(*trainer.store);
  }
};

}  // namespace

void use_exact_model(Trainer& trainer, ExactModel model) {
  trainer.replace_build_step("job", [model](Trainer& built) {
    const Config& config = built.config;
    ModelSpec divided = exact_spec(model, config, plan_tensor(config, built.place), plan_context(config),
                                   tensor_plan(config), plan_experts(config, built.place));
    built.job = plan_job(config, built.place, exact_spec(model, config), std::move(divided));
  });
  trainer.replace_build_step("teacher", build_exact_teacher);
  trainer.replace_build_step("model", [](Trainer& built) {
    built.model =
        make_model(built.job.part, built.store->lookup(),
                   {.context_length = built.config.training.seq_len,
                    .exchange = context_exchange(*built.groups, plan_context(built.config)),
                    .tensor = tensor_exchange(*built.groups, plan_tensor(built.config, built.place)),
                    .device = built.store->device(),
                    .entry = exact_entry_of});
  });
  trainer.replace_build_step("loader",
                             [](Trainer& built) { built.loader = std::make_unique<ExactLoader>(built); });
  trainer.replace_build_step("preferences", [](Trainer& built) {
    snap(*built.store);  // a reference is the model at the start
    build_preferences(built);
    built.preferences.loss = exact_pair_loss(built.preferences.loss);
  });
  trainer.add_callback(std::make_unique<Snap>());
}

}  // namespace stepforge
