// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/unread_options.h"

#include "stepforge/base/error_list.h"
#include "stepforge/base/format.h"
#include "stepforge/base/words.h"
#include "stepforge/catalog/hf_rope.h"
#include "stepforge/catalog/lr_schedule.h"
#include "stepforge/catalog/optimizer_kinds.h"
#include "stepforge/config/schema.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

/// Adds an error for each option of the user in the table `path`, an object of `schema`, that `reads` does not accept.
template <typename Reads>
void find_unread(const LoadedConfig& loaded, const TableSchema& schema, void* table, const std::string& path,
                 const std::string& chooser, const Reads& reads, ErrorList& errors) {
  const auto usual = schema.make_default();
  for (const Field& field : schema.fields()) {
    const std::string name = format("{}.{}", path, field.name);
    if (!loaded.chosen.contains(name) || reads(field.name)) continue;
    const std::string value = toml_value(field, field.slot(table));
    if (value == toml_value(field, field.slot(usual.get()))) continue;
    errors.add(
        format("{}: {} = {}: with {} it is not read; remove it", where(loaded, name), name, value, chooser));
  }
}

constexpr std::string_view kOfAllOptimizers = "name lr weight_decay decay_all param_groups";
constexpr std::string_view kOfAllGroups = "pattern lr weight_decay";
constexpr std::string_view kOfAllDecays = "warmup_steps warmup_ratio total_steps decay_type";
constexpr std::string_view kOfFallingRates = "decay_ratio min_lr_factor";

void find_unread_of_optimizer(const LoadedConfig& loaded, Config& config, ErrorList& errors) {
  const OptimizerChoice optimizer(config.optimizer, config.extensions);
  const std::string of_optimizer = format("optimizer.name = \"{}\"", config.optimizer.name);
  const TableSchema& section = *config_schema().find("optimizer")->table;
  find_unread(
      loaded, section, &config.optimizer, "optimizer", of_optimizer,
      [&](const std::string& option) {
        return has_word(kOfAllOptimizers, option) || optimizer.reads(option);
      },
      errors);
  for (std::size_t i = 0; i < config.optimizer.param_groups.size(); ++i) {
    find_unread(
        loaded, *section.find("param_groups")->table, &config.optimizer.param_groups[i],
        format("optimizer.param_groups.{}", i), of_optimizer,
        [&](const std::string& option) { return has_word(kOfAllGroups, option) || optimizer.reads(option); },
        errors);
  }
}

void find_unread_of_schedule(const LoadedConfig& loaded, Config& config, ErrorList& errors) {
  LrSchedulerConfig& lr_scheduler = config.lr_scheduler;
  const TableSchema& section = *config_schema().find("lr_scheduler")->table;
  const DecayKind& decay = find_decay(lr_scheduler.decay_type, config.extensions.registry());
  find_unread(
      loaded, section, &lr_scheduler, "lr_scheduler", format("lr_scheduler.decay_type = \"{}\"", decay.name),
      [&](const std::string& option) {
        return has_word(kOfAllDecays, option) || has_word(decay.reads, option) ||
               (decay.falls && has_word(kOfFallingRates, option));
      },
      errors);
  if (lr_scheduler.warmup_ratio < 0) return;
  find_unread(
      loaded, section, &lr_scheduler, "lr_scheduler",
      format("lr_scheduler.warmup_ratio = {}", lr_scheduler.warmup_ratio),
      [](const std::string& option) { return option != "warmup_steps"; }, errors);
}

void find_unread_of_rope(const LoadedConfig& loaded, Config& config, ErrorList& errors) {
  RopeScalingConfig& scaling = config.model.rope_scaling;
  find_unread(
      loaded, *config_schema().find("model")->table->find("rope_scaling")->table, &scaling,
      "model.rope_scaling", format("model.rope_scaling.type = \"{}\"", choice_name(scaling.type)),
      [&](const std::string& option) { return option == "type" || reads_rope_option(scaling.type, option); },
      errors);
}

void find_unread_of_experts(const LoadedConfig& loaded, Config& config, ErrorList& errors) {
  ParallelismConfig& parallelism = config.parallelism;
  if (parallelism.expert_parallel_degree > 1 || parallelism.expert_tensor_parallel_degree > 1) return;
  find_unread(
      loaded, *config_schema().find("parallelism")->table, &parallelism, "parallelism",
      "parallelism.expert_parallel_degree = 1",
      [](const std::string& option) { return option != "expert_parallel_dispatcher"; }, errors);
}

}  // namespace

void refuse_unread_options(const LoadedConfig& loaded) {
  ErrorList errors = ErrorList::with_places("the configuration");
  Config config = loaded.config;
  find_unread_of_optimizer(loaded, config, errors);
  find_unread_of_schedule(loaded, config, errors);
  find_unread_of_rope(loaded, config, errors);
  find_unread_of_experts(loaded, config, errors);
  errors.throw_if_any<UsageError>();
}

}  // namespace stepforge
