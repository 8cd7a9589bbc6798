// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/rules.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/config/name_pattern.h"
#include "stepforge/config/schema.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

/// Judges one configuration.
class Judge {
 public:
  Judge(const LoadedConfig& loaded, Problems& problems) : loaded_(loaded), problems_(problems) {}

  /// Adds "run.toml:3:9: training.steps = 10 and run.toml:4:10: training.epochs = 2: <text>" unless one of
  /// the fields is refused already.
  void refuse(const std::vector<std::string>& fields, std::string_view text) const {
    std::vector<std::string> named;
    Config values = loaded_.config;
    for (const std::string& name : fields) {
      if (problems_.is_bad(name)) return;
      const FieldRef place = find_field(config_schema(), &values, name);
      named.push_back(
          format("{}: {} = {}", where(loaded_, name), name, toml_value(*place.field, slot_of(place))));
    }
    problems_.add_rule(format("{}: {}", join(named, " and "), text));
  }
  void refuse_unless(bool holds, const std::vector<std::string>& fields, std::string_view text) const {
    if (!holds) refuse(fields, text);
  }

  const Config& config() const { return loaded_.config; }

 private:
  const LoadedConfig& loaded_;
  Problems& problems_;
};

void check_model(const Judge& judge) {
  const ModelConfig& model = judge.config().model;
  judge.refuse_unless(model.n_heads % model.n_kv_heads == 0, {"model.n_heads", "model.n_kv_heads"},
                      "n_heads must be a multiple of n_kv_heads");
  if (model.head_dim == 0 && model.dim % model.n_heads != 0) {
    judge.refuse({"model.dim", "model.n_heads"}, "dim must be a multiple of n_heads; or set model.head_dim");
  } else if (model.head_dim == 0) {
    judge.refuse_unless(
        model.dim / model.n_heads % 2 == 0, {"model.dim", "model.n_heads"},
        format("heads of width {}; rotary positions need an even width", model.dim / model.n_heads));
  } else {
    judge.refuse_unless(model.head_dim % 2 == 0, {"model.head_dim"}, "rotary positions need an even width");
  }
  const RopeScalingConfig& scaling = model.rope_scaling;
  judge.refuse_unless(
      scaling.type == RopeScalingType::none || scaling.low_freq_factor < scaling.high_freq_factor,
      {"model.rope_scaling.low_freq_factor", "model.rope_scaling.high_freq_factor"},
      "low_freq_factor must be below high_freq_factor");
}

void check_tokenizer(const Judge& judge) {
  const Config& config = judge.config();
  judge.refuse_unless(config.tokenizer.type != TokenizerType::bytes || config.tokenizer.path.empty(),
                      {"tokenizer.type", "tokenizer.path"},
                      "a bytes tokenizer has no file; remove path, or set type to \"bpe\" or \"hf\"");
  const bool trained = config.tokenizer.type == TokenizerType::bpe && config.tokenizer.path.empty();
  judge.refuse_unless(
      !trained || config.model.vocab_size == 0 || config.tokenizer.vocab_size <= config.model.vocab_size,
      {"tokenizer.vocab_size", "model.vocab_size"},
      "the tokenizer would have more tokens than the model; set model.vocab_size to 0 or more");
}

void check_sources(const Judge& judge, std::string_view list, const std::vector<DataSourceConfig>& sources) {
  for (size_t i = 0; i < sources.size(); ++i) {
    const std::string name = format("{}.{}", list, i);
    const bool synthetic = sources[i].format == DataFormat::synthetic;
    judge.refuse_unless(synthetic || !sources[i].path.empty(), {name + ".path"},
                        "a source needs a path, unless its format is \"synthetic\"");
    judge.refuse_unless(!synthetic || sources[i].path.empty(), {name + ".path", name + ".format"},
                        "a synthetic source has no path; remove it, or choose another format");
  }
}

void check_data_section(const Judge& judge) {
  const DataConfig& data = judge.config().data;
  check_sources(judge, "data.sources", data.sources);
  check_sources(judge, "data.validation", data.validation);
  judge.refuse_unless(data.validation.empty() || data.validation_fraction == 0,
                      {"data.validation_fraction", "data.validation"},
                      "validation data is either held out of the sources or listed; set one of them only");
}

void check_training(const Judge& judge) {
  const Config& config = judge.config();
  const TrainingConfig& training = config.training;
  judge.refuse_unless(training.steps == 0 || training.epochs == 0, {"training.steps", "training.epochs"},
                      "exactly one of them gives the length of the run; set the other to 0");
  judge.refuse_unless(
      training.global_batch_size == -1 || training.global_batch_size % training.local_batch_size == 0,
      {"training.global_batch_size", "training.local_batch_size"},
      "global_batch_size must be a multiple of local_batch_size");
  judge.refuse_unless(training.seq_len <= config.model.max_position,
                      {"training.seq_len", "model.max_position"},
                      "rows must not be longer than the model's context");
  judge.refuse_unless(
      training.loss_aggregation != LossAggregation::rank_average ||
          training.reduction != ReductionMode::ordered,
      {"training.loss_aggregation", "training.reduction"},
      "ordered sums give the same bits on any number of ranks, but an average over ranks "
      "depends on which rows they have; set loss_aggregation to \"token_mean\", or reduction to "
      "\"fast\"");
}

void check_parallelism(const Judge& judge) {
  const ParallelismConfig& parallelism = judge.config().parallelism;
  judge.refuse_unless(
      parallelism.data_parallel_replicate_degree != -1 || parallelism.data_parallel_shard_degree != -1,
      {"parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"},
      "only one of them can be what is left of the ranks; set the other");
  judge.refuse_unless(
      !parallelism.fsdp_reduce_each_micro_batch ||
          judge.config().training.reduction != ReductionMode::ordered,
      {"parallelism.fsdp_reduce_each_micro_batch", "training.reduction"},
      "the ordered sum is one tree over the micro-batches of a step, which cannot be reduced one by one; set "
      "fsdp_reduce_each_micro_batch to false, or reduction to \"fast\"");
  judge.refuse_unless(parallelism.fsdp_partition == FsdpPartition::flat ||
                          judge.config().training.reduction != ReductionMode::ordered,
                      {"parallelism.fsdp_partition", "training.reduction"},
                      "the ordered norm adds chunks in the order of one rank's unit, which only the flat "
                      "partition keeps; set fsdp_partition "
                      "to \"flat\", or reduction to \"fast\"");
  judge.refuse_unless(judge.config().precision.reduce == DType::f32 ||
                          judge.config().training.reduction != ReductionMode::ordered,
                      {"precision.reduce", "training.reduction"},
                      "rounded sums depend on how the rows are split; set precision.reduce to \"fp32\", or "
                      "reduction to \"fast\"");
  std::set<std::string> seen;
  for (size_t i = 0; i < parallelism.fsdp_prefetch_lists.size(); ++i) {
    const PrefetchListConfig& list = parallelism.fsdp_prefetch_lists[i];
    const std::string name = format("parallelism.fsdp_prefetch_lists.{}", i);
    judge.refuse_unless(seen.insert(list.unit).second, {name + ".unit"},
                        "an earlier table names this unit; put both lists into one");
    judge.refuse_unless(
        !list.forward.empty() || !list.backward.empty(), {name + ".unit"},
        "nothing is gathered while it computes; fill forward or backward, or remove the table");
    const auto check = [&](const char* direction, const std::vector<std::string>& units) {
      judge.refuse_unless(std::find(units.begin(), units.end(), list.unit) == units.end(),
                          {format("{}.{}", name, direction)},
                          "the unit itself is gathered by then; remove it");
    };
    check("forward", list.forward);
    check("backward", list.backward);
  }
}

/// The regular expression's fault, or "".
std::string pattern_fault(const std::string& pattern) {
  constexpr size_t longest = 1000;
  if (pattern.size() > longest) return format("longer than {} characters", longest);
  try {
    static_cast<void>(NamePattern(pattern).matches("layers.10.attention.query.weight"));
    return "";
  } catch (const FormatError& error) {
    return error.what();
  }
}

void check_optimizer(const Judge& judge) {
  const auto& groups = judge.config().optimizer.param_groups;
  std::set<std::string> seen;
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string name = format("optimizer.param_groups.{}.pattern", i);
    if (groups[i].pattern.empty()) {
      judge.refuse({name}, "a group needs a pattern, such as \"embed\"");
      continue;
    }
    const std::string fault = pattern_fault(groups[i].pattern);
    judge.refuse_unless(fault.empty(), {name}, fault);
    judge.refuse_unless(seen.insert(groups[i].pattern).second, {name},
                        "an earlier group has the same pattern and takes all its parameters; remove one");
  }
}

void check_activation_checkpoint(const Judge& judge) {
  const Config& config = judge.config();
  const ActivationCheckpointConfig& recompute = config.activation_checkpoint;
  const std::string mode = "activation_checkpoint.mode";
  const auto check_list = [&](RecomputeMode its_mode, bool filled) {
    const std::string_view key = choice_name(its_mode);
    const std::string field = format("activation_checkpoint.{}", key);
    judge.refuse_unless(filled || recompute.mode != its_mode, {mode, field},
                        format("mode \"{}\" needs the list", key));
    judge.refuse_unless(
        !filled || recompute.mode == its_mode, {field, mode},
        format("the list is used with mode \"{}\" only; set the mode, or remove the list", key));
  };
  check_list(RecomputeMode::blocks, !recompute.blocks.empty());
  check_list(RecomputeMode::regions, !recompute.regions.empty());
  const auto has_duplicates = [](auto list) {
    std::sort(list.begin(), list.end());
    return std::adjacent_find(list.begin(), list.end()) != list.end();
  };
  judge.refuse_unless(!has_duplicates(recompute.blocks), {"activation_checkpoint.blocks"},
                      "a layer is listed twice");
  judge.refuse_unless(!has_duplicates(recompute.regions), {"activation_checkpoint.regions"},
                      "a region is listed twice");
  const bool in_model = std::all_of(recompute.blocks.begin(), recompute.blocks.end(),
                                    [&](int64_t block) { return block < config.model.n_layers; });
  judge.refuse_unless(in_model, {"activation_checkpoint.blocks", "model.n_layers"},
                      format("layers are counted from 0 to {}", config.model.n_layers - 1));
}

void check_run(const Judge& judge) {
  const Config& config = judge.config();
  judge.refuse_unless(
      !config.checkpoint.last_save_in_hf || (config.checkpoint.enable && config.checkpoint.save_at_end),
      {"checkpoint.last_save_in_hf", "checkpoint.enable", "checkpoint.save_at_end"},
      "the Hugging Face folder is made from the last checkpoint; let it be saved, or export later with "
      "`stepforge export`");
  judge.refuse_unless(config.checkpoint.resume || config.checkpoint.load_step == -1,
                      {"checkpoint.load_step", "checkpoint.resume"},
                      "a step is loaded on resume only; set resume to true or load_step to -1");
  judge.refuse_unless((config.debug.plant_nan_step == -1) == config.debug.plant_nan_block.empty(),
                      {"debug.plant_nan_step", "debug.plant_nan_block"}, "set both of them or neither");
}

}  // namespace

void check_combinations(const LoadedConfig& loaded, Problems& problems) {
  const Judge judge(loaded, problems);
  check_model(judge);
  check_tokenizer(judge);
  check_data_section(judge);
  check_training(judge);
  check_parallelism(judge);
  check_optimizer(judge);
  check_activation_checkpoint(judge);
  check_run(judge);
}

namespace {

void require_existing(const Judge& judge, const std::string& field, const std::string& path) {
  std::error_code fault;
  judge.refuse_unless(path.empty() || std::filesystem::exists(path, fault), {field},
                      "there is no such file or folder");
}

void require_sources(const Judge& judge, std::string_view list,
                     const std::vector<DataSourceConfig>& sources) {
  for (size_t i = 0; i < sources.size(); ++i) {
    std::error_code fault;
    const std::string& path = sources[i].path;
    if (std::filesystem::exists(path + ".bin", fault) &&
        (sources[i].format == DataFormat::bin || sources[i].format == DataFormat::automatic)) {
      continue;
    }
    require_existing(judge, format("{}.{}.path", list, i), path);
  }
}

}  // namespace

void check_data(const LoadedConfig& loaded, Problems& problems) {
  const Judge judge(loaded, problems);
  const Config& config = judge.config();
  judge.refuse_unless(!config.data.sources.empty(), {"data.sources"},
                      "there is no data; write data.sources = [{ path = \"book.txt\" }]");
  const bool run_has_tokenizer =
      std::filesystem::exists(std::filesystem::path(config.run_dir) / "tokenizer" / "tokenizer.json");
  judge.refuse_unless(
      config.tokenizer.type != TokenizerType::hf || !config.tokenizer.path.empty() || run_has_tokenizer,
      {"tokenizer.type", "tokenizer.path"},
      "name the folder of the Hugging Face model, or its tokenizer.json");
  require_existing(judge, "tokenizer.path", config.tokenizer.path);
  require_sources(judge, "data.sources", config.data.sources);
  require_sources(judge, "data.validation", config.data.validation);
}

void check_for_training(const LoadedConfig& loaded, Problems& problems) {
  const Judge judge(loaded, problems);
  const Config& config = judge.config();
  judge.refuse_unless(config.training.steps > 0 || config.training.epochs > 0,
                      {"training.steps", "training.epochs"},
                      "one of them must give the length of the run, such as training.steps = 1000");
  judge.refuse_unless(
      config.validation.freq == 0 || !config.data.validation.empty() || config.data.validation_fraction > 0,
      {"validation.freq", "data.validation"},
      "there is nothing to validate on; list data.validation or set data.validation_fraction, such as 0.01");
  require_existing(judge, "checkpoint.initial_load_path", config.checkpoint.initial_load_path);
}

}  // namespace stepforge
