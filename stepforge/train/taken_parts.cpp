// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/taken_parts.h"

#include <chrono>
#include <filesystem>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/train/progress_log.h"

namespace stepforge {

namespace {

std::optional<InitialAdapter> parts_of_run(const Trainer& trainer, const std::string& hash = "") {
  return initial_adapter_of(trainer.config.run_dir, trainer.config.adapter, trainer.job.whole, hash);
}

}  // namespace

std::optional<InitialAdapter> new_parts(const Trainer& trainer, const std::function<TensorFolder()>& open) {
  const AdapterConfig& adapter = trainer.config.adapter;
  if (!adapter.takes_parts()) return std::nullopt;
  const auto begin = std::chrono::steady_clock::now();
  if (trainer.is_main())
    trainer.log.info("adapter.init = \"pissa\": computing the largest singular parts of adapted matrices");
  ProgressLog progress(trainer, "singular parts", "matrices");
  write_initial_adapter(trainer.config.run_dir, adapter, trainer.job.whole, open, *trainer.checkpoint_ranks,
                        [&](int64_t done, int64_t all) {
                          progress.log(done, all);
                          return trainer.interrupted();
                        });
  auto parts = parts_of_run(trainer);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (trainer.is_main())
    trainer.log.info("the parts of {} matrices are in {} after {:.1f} s", parts->factors().size() / 2,
                     (std::filesystem::path(trainer.config.run_dir) / kInitialAdapterFolder).string(),
                     seconds.count());
  return parts;
}

std::optional<InitialAdapter> continued_parts(const Trainer& trainer, const KnownModel& source,
                                              const std::string& hash) {
  const AdapterConfig& adapter = trainer.config.adapter;
  const AdapterConfig& before = source.config.adapter;
  if (!adapter.enabled()) return std::nullopt;
  if (adapter.takes_parts() && !before.enabled())
    throw UsageError(format(
        "adapter.init = \"pissa\" begins with parts of the weights, and {} has no adapter that a run could go on "
        "with; set checkpoint.initial_load_model_only = true",
        source.weights.string()));
  if (adapter.takes_parts() != before.takes_parts()) {
    throw UsageError(format(
        "adapter.init = \"{}\", but \"{}\" in {}, whose adapter belongs to {} weights; set adapter.init = "
        "\"{}\", or start from the folder that `stepforge export {} FOLDER --merge` writes",
        choice_name(adapter.init), choice_name(before.init), source.weights.string(),
        before.takes_parts() ? "the rest of the" : "whole", choice_name(before.init),
        source.weights.string()));
  }
  if (!adapter.takes_parts()) return std::nullopt;
  if (!std::filesystem::equivalent(source.folder, trainer.config.run_dir))
    copy_initial_adapter(source.folder, trainer.config.run_dir, *trainer.checkpoint_ranks);
  return parts_of_run(trainer, hash);
}

}  // namespace stepforge
