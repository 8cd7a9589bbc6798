// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/rules.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

#include "stepforge/base/device_name.h"
#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/hub_name.h"
#include "stepforge/base/lfs_pointer.h"
#include "stepforge/base/path_pattern.h"
#include "stepforge/config/data_sources.h"
#include "stepforge/config/name_pattern.h"
#include "stepforge/config/schema.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

/// Checks conditions on fields of one configuration and reports those that do not hold.
class RuleCheck {
 public:
  RuleCheck(const LoadedConfig& loaded, const RefusedFields& refused, ErrorList& errors,
            std::vector<std::string>* missing = nullptr)
      : loaded_(loaded), refused_(refused), errors_(errors), missing_(missing) {}

  const Config& config() const { return loaded_.config; }

  /// If not `condition`, reports "run.toml:3:9: training.steps = 10 and run.toml:4:10: training.epochs = 2:
  /// <error>", unless one of `fields` was refused before.
  void require(bool condition, const std::vector<std::string>& fields, std::string_view error) const {
    if (condition) return;
    std::vector<std::string> named;
    Config values = loaded_.config;
    for (const std::string& name : fields) {
      if (refused_.contains(name)) return;
      const FieldRef ref = find_field(config_schema(), &values, name);
      named.push_back(
          format("{}: {} = {}", where(loaded_, name), name, toml_value(*ref.field, slot_of(ref))));
    }
    std::string text = format("{}: {}", join(named, " and "), error);
    if (missing_ != nullptr &&
        std::ranges::none_of(fields, [&](const auto& name) { return is_chosen(name); }))
      missing_->push_back(std::move(text));
    else
      errors_.add(std::move(text));
  }

 private:
  bool is_chosen(const std::string& field) const {
    const auto found = loaded_.chosen.lower_bound(field);
    return found != loaded_.chosen.end() && (*found == field || found->starts_with(field + "."));
  }

  const LoadedConfig& loaded_;
  const RefusedFields& refused_;
  ErrorList& errors_;
  std::vector<std::string>* missing_;
};

void check_head_dim(const RuleCheck& check) {
  const ModelConfig& model = check.config().model;
  if (model.kv_lora_rank != 0) return;  // with MLA, heads have their own sizes
  if (model.head_dim != 0) {
    check.require(model.head_dim % 2 == 0, {"model.head_dim"}, "rotary embeddings need an even head_dim");
    return;
  }
  const bool divides = model.dim % model.n_heads == 0;
  const int64_t head_dim = model.dim / model.n_heads;
  check.require(divides, {"model.dim", "model.n_heads"},
                "dim must be a multiple of n_heads, unless model.head_dim is set");
  check.require(!divides || head_dim % 2 == 0, {"model.dim", "model.n_heads"},
                format("dim / n_heads = {}, but rotary embeddings need an even head_dim", head_dim));
}

bool freezes_weights(const Config& config) {
  return !config.model.freeze.empty() || config.adapter.enabled();
}

void check_adapter(const RuleCheck& check) {
  const Config& config = check.config();
  if (!config.adapter.enabled()) return;
  check.require(config.model.freeze.empty(), {"adapter.type", "model.freeze"},
                "with adapters all other weights are frozen; remove freeze, and name what is trained too in "
                "adapter.also_train");
  check.require(!config.checkpoint.enable || !config.checkpoint.initial_load_path.empty(),
                {"adapter.type", "checkpoint.initial_load_path"},
                "checkpoints hold the adapter but not the model, which must be found elsewhere; start from a "
                "model with model.from, or set checkpoint.enable = false");
  const bool takes_parts = config.adapter.takes_parts();
  check.require(!takes_parts || !config.checkpoint.initial_load_path.empty(),
                {"adapter.init", "checkpoint.initial_load_path"},
                "pissa takes parts of the weights of a model on disk; name it with model.from");
  check.require(
      !takes_parts || config.adapter.from.empty(), {"adapter.init", "adapter.from"},
      "an adapter from a folder starts with its own values, beside whole weights; remove one of the two");
  check.require(
      !takes_parts || config.adapter.experts == ExpertAdapters::each, {"adapter.init", "adapter.experts"},
      "the singular parts of each expert have an A of their own; set experts = \"each\", or another init");
}

void check_model(const RuleCheck& check) {
  const ModelConfig& model = check.config().model;
  check.require(model.n_heads % model.n_kv_heads == 0, {"model.n_heads", "model.n_kv_heads"},
                "n_heads must be a multiple of n_kv_heads");
  check_head_dim(check);
  const auto slides =
      std::count(model.layer_types.begin(), model.layer_types.end(), AttentionKind::sliding_attention);
  check.require(
      (model.sliding_window > 0) == (slides > 0) || model.layer_types.empty(),
      {"model.sliding_window", "model.layer_types"},
      "layers of the type sliding_attention need a sliding_window above 0, and a window needs such layers");
  check.require(model.rope_local_theta == 0.0 || model.sliding_window > 0,
                {"model.rope_local_theta", "model.sliding_window"},
                "only layers with a sliding window have this base; set sliding_window, or remove it");
  check.require(model.frozen_dtype == FrozenDType::fp32 || freezes_weights(check.config()),
                {"model.frozen_dtype", "model.freeze", "adapter.type"},
                "no weights are frozen; name them in freeze, add an adapter, or remove frozen_dtype");
  check.require(!model.double_quantization || storage_of(model.frozen_dtype).code == WeightCode::nf4,
                {"model.double_quantization", "model.frozen_dtype"},
                "only the factors of nf4 are quantized too; set frozen_dtype = \"nf4\", or "
                "double_quantization = false");
  const CheckpointConfig& checkpoint = check.config().checkpoint;
  check.require(!storage_of(model.frozen_dtype).coded() || check.config().adapter.enabled() ||
                    !checkpoint.enable || checkpoint.exclude_frozen,
                {"model.frozen_dtype", "checkpoint.exclude_frozen"},
                "codes are not written into checkpoints; set exclude_frozen = true");
  const RopeScalingConfig& scaling = model.rope_scaling;
  check.require(scaling.type != RopeScalingType::llama3 || scaling.low_freq_factor < scaling.high_freq_factor,
                {"model.rope_scaling.low_freq_factor", "model.rope_scaling.high_freq_factor"},
                "low_freq_factor must be below high_freq_factor");
}

void check_special_tokens(const RuleCheck& check) {
  const TokenizerConfig& tokenizer = check.config().tokenizer;
  const auto& special = tokenizer.special_tokens;
  const auto is_special = [&](const std::string& token) {
    return std::find(special.begin(), special.end(), token) != special.end();
  };
  const std::string eos = tokenizer.eos_token.empty() ? "<|endoftext|>" : tokenizer.eos_token;
  check.require(special.empty() ? eos == "<|endoftext|>" : is_special(eos),
                {"tokenizer.eos_token", "tokenizer.special_tokens"},
                "eos_token must be one of special_tokens; empty, it is <|endoftext|>");
  check.require(tokenizer.bos_token.empty() || is_special(tokenizer.bos_token),
                {"tokenizer.bos_token", "tokenizer.special_tokens"},
                "bos_token must be one of special_tokens");
}

void check_tokenizer(const RuleCheck& check) {
  const Config& config = check.config();
  check.require(config.tokenizer.type != TokenizerType::bytes || config.tokenizer.path.empty(),
                {"tokenizer.type", "tokenizer.path"},
                "a bytes tokenizer has no file; remove path, or set type to \"bpe\" or \"hf\"");
  const bool trained = config.tokenizer.type == TokenizerType::bpe && config.tokenizer.path.empty();
  check.require(
      !trained || config.model.vocab_size == 0 || config.tokenizer.vocab_size <= config.model.vocab_size,
      {"tokenizer.vocab_size", "model.vocab_size"},
      "the tokenizer would have more tokens than the model; increase model.vocab_size, or set it to 0 for "
      "the tokenizer's size");
  if (trained) check_special_tokens(check);
}

void check_source(const RuleCheck& check, const std::string& name, const DataSourceConfig& source) {
  const bool synthetic = source.format == DataFormat::synthetic;
  const bool of_plugin = source.kind != kBuiltinSource;
  check.require(of_plugin || synthetic || !source.path.empty(), {name + ".path"},
                "a source needs a path, unless its format is \"synthetic\"");
  check.require(!of_plugin || source.format == DataFormat::automatic, {name + ".kind", name + ".format"},
                "a plug-in's data source has no format; remove it");
  check.require(!of_plugin || source.dataset.empty(), {name + ".kind", name + ".dataset"},
                "a plug-in's data source has no entry of dataset_info.json; remove it");
  check.require(!synthetic || source.path.empty(), {name + ".path", name + ".format"},
                "a synthetic source has no path; remove it, or choose another format");
  const bool named = !source.dataset.empty();
  check.require(!named || source.format == DataFormat::automatic, {name + ".dataset", name + ".format"},
                "the entry of dataset_info.json gives the format; remove it");
  check.require(!named || source.field == DataSourceConfig{}.field, {name + ".dataset", name + ".field"},
                "the entry of dataset_info.json gives the fields; remove it");
  const bool is_chat = named || source.format >= DataFormat::messages;
  check.require(
      is_chat || source.loss_on == LossOnMessages::assistant, {name + ".loss_on", name + ".format"},
      "only conversations have messages; remove it, or choose the format messages, sharegpt, alpaca or "
      "prompt_completion");
}

/// A group has none of the fields that describe what a source reads.
void check_group(const RuleCheck& check, const std::string& name, const DataSourceConfig& group) {
  const DataSourceConfig unset;
  constexpr std::string_view kError =
      "an entry with sources is a group, which reads nothing itself; move this into its sources";
  check.require(group.path == unset.path, {name + ".path"}, kError);
  check.require(group.kind == unset.kind, {name + ".kind"}, kError);
  check.require(group.field == unset.field, {name + ".field"}, kError);
  check.require(group.format == unset.format, {name + ".format"}, kError);
  check.require(group.loss_on == unset.loss_on, {name + ".loss_on"}, kError);
  check.require(group.dataset == unset.dataset, {name + ".dataset"}, kError);
  if (group.combine == SourceCombine::mix) return;
  for (size_t i = 0; i < group.sources.size(); ++i) {
    const std::string inner = format("{}.sources.{}", name, i);
    check.require(group.sources[i].weight == 1, {inner + ".weight", name + ".combine"},
                  "concat has the rows of each source once; remove the weight, or combine by \"mix\"");
    check.require(group.sources[i].epochs < 0, {inner + ".epochs", name + ".combine"},
                  "concat has the rows of each source once; remove epochs, or combine by \"mix\"");
  }
}

/// In a list, either all entries have epochs or none.
void check_shares(const RuleCheck& check, const std::string& list,
                  const std::vector<DataSourceConfig>& sources) {
  const auto with_epochs =
      std::ranges::find_if(sources, [](const DataSourceConfig& source) { return source.epochs > 0; });
  if (with_epochs == sources.end()) return;
  const std::string named = format("{}.{}.epochs", list, with_epochs - sources.begin());
  for (size_t i = 0; i < sources.size(); ++i) {
    const std::string name = format("{}.{}", list, i);
    check.require(
        sources[i].epochs > 0, {named, name + ".epochs"},
        "a list of sources has either weights or epochs; give epochs to every entry of the list, or to none");
    check.require(sources[i].epochs < 0 || sources[i].weight == 1, {name + ".weight", name + ".epochs"},
                  "a source has either a weight or epochs; remove one of them");
  }
}

void check_preset(const RuleCheck& check) {
  const DataConfig& data = check.config().data;
  const bool is_preset = data.packing == Packing::preset;
  check.require(!is_preset || !data.preset.empty(), {"data.packing", "data.preset"},
                "name the folder of the rows, such as data.preset = \"packed\"");
  check.require(!is_preset || leaf_sources("data.sources", data.sources).size() <= 1, {"data.packing"},
                "a preset has the rows of one source, and data.sources lists several; use another packing");
}

/// `all_synthetic`: no source has documents.
void check_row_order(const RuleCheck& check, bool all_synthetic) {
  const DataConfig& data = check.config().data;
  const auto require_step = [&](bool asked, const std::string& field) {
    check.require(!asked || check.config().training.global_batch_size > 0,
                  {field, "training.global_batch_size"},
                  "the order of the rows of a step must not depend on the number of ranks; set "
                  "training.global_batch_size");
  };
  require_step(data.group_by_length, "data.group_by_length");
  require_step(data.balance, "data.balance");
  check.require(!data.group_by_length || data.packing != Packing::concat,
                {"data.group_by_length", "data.packing"},
                "all rows of packing \"concat\" are full; set group_by_length to false, or another packing");
  check.require(
      !data.group_by_length || data.shuffle, {"data.group_by_length", "data.shuffle"},
      "rows that are grouped by length are shuffled; set shuffle to true, or group_by_length to false");
  check.require(
      !data.group_by_length || leaf_sources("data.sources", data.sources).size() <= 1,
      {"data.group_by_length"},
      "a step has rows of all data.sources, so those of one cannot be grouped; set group_by_length to false");
  const bool all_equal = all_synthetic && !data.sources.empty() && data.synthetic_document_length == 0;
  check.require(!data.balance || !all_equal, {"data.balance", "data.synthetic_document_length"},
                "all synthetic rows cost the same; set balance to false, or synthetic_document_length");
}

void check_sources(const RuleCheck& check, const std::string& list,
                   const std::vector<DataSourceConfig>& sources) {
  check_shares(check, list, sources);
  for (const auto& [name, source] : all_entries(list, sources)) {
    if (source->sources.empty()) {
      check_source(check, name, *source);
      check.require(source->combine == SourceCombine::mix, {name + ".combine"},
                    "only a group combines sources; remove it, or list them in sources");
    } else {
      check_group(check, name, *source);
      check_shares(check, name + ".sources", source->sources);
    }
  }
}

/// The lists of the tree that are mixed by weight.
std::vector<const std::vector<DataSourceConfig>*> weighted_lists(
    const std::vector<DataSourceConfig>& sources) {
  std::vector<const std::vector<DataSourceConfig>*> lists;
  const auto add = [&](const std::vector<DataSourceConfig>& list) {
    const auto by_weight = [](const DataSourceConfig& source) { return source.epochs < 0; };
    if (list.size() > 1 && std::ranges::all_of(list, by_weight)) lists.push_back(&list);
  };
  add(sources);
  for (const auto& [name, source] : all_entries("data.sources", sources))
    if (source->combine == SourceCombine::mix) add(source->sources);
  return lists;
}

/// Refuses settings of the mixture that would change nothing.
void check_mixture(const RuleCheck& check) {
  const DataConfig& data = check.config().data;
  const TrainingConfig& training = check.config().training;
  const auto weighted = weighted_lists(data.sources);
  const auto sets_none = [](const std::vector<DataSourceConfig>* list) {
    return std::ranges::all_of(*list, [](const DataSourceConfig& source) { return source.weight == 1; });
  };
  check.require(data.weights_by == ShareOf::rows || data.sources.empty() || !weighted.empty(),
                {"data.weights_by"}, "no list of sources is mixed by weight; remove it");
  check.require(
      data.temperature == 0 || data.sources.empty() || std::ranges::any_of(weighted, sets_none),
      {"data.temperature"},
      "it sets the weights of lists of several sources that have neither weights nor epochs, and there is "
      "none; remove it or the weights");
  if (data.epoch_remainder == EpochRemainder::carry) return;
  check.require(
      training.global_batch_size > 0, {"data.epoch_remainder", "training.global_batch_size"},
      "smaller_step fills the last step of an epoch, so it needs the same batch on any number of ranks; "
      "set global_batch_size");
  check.require(
      training.epochs > 0 || has_exact_epoch(data.sources), {"data.epoch_remainder", "training.epochs"},
      "sources that are mixed by weight have no epoch of their own; set training.epochs, or epochs instead "
      "of weight in each source");
}

void check_data_section(const RuleCheck& check) {
  const DataConfig& data = check.config().data;
  check_sources(check, "data.sources", data.sources);
  check_sources(check, "data.validation", data.validation);
  check_mixture(check);
  check.require(data.split.empty() || (data.validation.empty() && data.validation_fraction == 0),
                {"data.split", "data.validation", "data.validation_fraction"},
                "split says which documents are held out; set only one of them");
  check.require(data.validation.empty() || data.validation_fraction == 0,
                {"data.validation_fraction", "data.validation"},
                "validation data is either held out of the sources or listed; set only one of them");
  const std::vector<DataSourceAt> sources = leaf_sources("data.sources", data.sources);
  const bool all_synthetic = std::ranges::all_of(
      sources, [](const DataSourceAt& entry) { return entry.source->format == DataFormat::synthetic; });
  check_preset(check);
  check_row_order(check, all_synthetic);
  const bool cuts_rows = data.packing == Packing::concat || data.packing == Packing::hard;
  check.require(
      data.too_long == TooLong::cut || !cuts_rows, {"data.too_long", "data.packing"},
      "rows of this packing hold documents of any length; set packing to \"best_fit\", or remove too_long");
  if (sources.empty()) return;
  check.require(data.packing == Packing::concat || !all_synthetic,
                {"data.packing", sources.front().place + ".format"},
                "synthetic rows are not packed from documents; set packing to \"concat\"");
}

void check_training(const RuleCheck& check) {
  const Config& config = check.config();
  const TrainingConfig& training = config.training;
  check.require(parse_device_name(training.device).has_value(), {"training.device"}, kDeviceNames);
  check.require(training.steps == 0 || training.epochs == 0, {"training.steps", "training.epochs"},
                "only one of them can set the length of the run; set the other to 0");
  check.require(
      training.global_batch_size == -1 || training.global_batch_size % training.local_batch_size == 0,
      {"training.global_batch_size", "training.local_batch_size"},
      "global_batch_size must be a multiple of local_batch_size");
  check.require(training.seq_len <= config.model.max_position, {"training.seq_len", "model.max_position"},
                "seq_len must not exceed max_position, the context length of the model");
}

void check_callbacks(const RuleCheck& check) {
  std::set<std::string> seen;
  for (const std::string& name : check.config().training.callbacks)
    check.require(seen.insert(name).second, {"training.callbacks"},
                  format("it names \"{}\" twice; remove one", name));
}

void check_micro_batches(const RuleCheck& check) {
  const Config& config = check.config();
  const int64_t rows = config.parallelism.pipeline_parallel_microbatch_size;
  check.require(rows == 0 || config.training.local_batch_size % rows == 0,
                {"training.local_batch_size", "parallelism.pipeline_parallel_microbatch_size"},
                "a pipeline divides the rows of local_batch_size into micro-batches of equal size; set "
                "pipeline_parallel_microbatch_size to a divisor of it, or to 0");
  check.require(rows <= 1 || config.training.reduction != ReductionMode::ordered,
                {"parallelism.pipeline_parallel_microbatch_size", "training.reduction"},
                "ordered mode sums row by row, so a micro-batch is one row; set "
                "pipeline_parallel_microbatch_size to 1 or 0, or reduction to \"fast\"");
}

/// Ordered mode gives the same bits for every layout, which excludes some options.
void check_ordered(const RuleCheck& check) {
  const Config& config = check.config();
  if (config.training.reduction != ReductionMode::ordered) return;
  check.require(config.training.loss_aggregation != LossAggregation::rank_average,
                {"training.loss_aggregation", "training.reduction"},
                "ordered sums give the same bits on any number of ranks, but an average over ranks depends "
                "on which rows they have; set loss_aggregation to \"token_mean\", or reduction to \"fast\"");
  check.require(!config.parallelism.fsdp_reduce_each_micro_batch,
                {"parallelism.fsdp_reduce_each_micro_batch", "training.reduction"},
                "ordered mode sums the micro-batches of a step in one tree, so they cannot be reduced one by "
                "one; set fsdp_reduce_each_micro_batch to false, or reduction to \"fast\"");
  check.require(config.parallelism.fsdp_partition == PartitionKind::flat,
                {"parallelism.fsdp_partition", "training.reduction"},
                "ordered mode computes the gradient norm in the order of a unit's elements, which only the "
                "flat partition keeps; set fsdp_partition to \"flat\", or reduction to \"fast\"");
  check.require(config.parallelism.context_parallel_degree == 1,
                {"parallelism.context_parallel_degree", "training.reduction"},
                "ordered mode sums the gradients of whole rows, which context parallelism divides; set "
                "context_parallel_degree to 1, or reduction to \"fast\"");
  check.require(config.precision.reduce == DType::f32, {"precision.reduce", "training.reduction"},
                "sums of rounded gradients depend on how the rows are split; set precision.reduce to "
                "\"fp32\", or reduction to \"fast\"");
}

/// The error in the regular expression, or "".
std::string pattern_error(const std::string& pattern) {
  constexpr size_t kMaxLength = 1000;
  if (pattern.size() > kMaxLength) return format("longer than {} characters", kMaxLength);
  try {
    static_cast<void>(NamePattern(pattern).matches("layers.10.attention.query.weight"));
    return "";
  } catch (const FormatError& error) {
    return error.what();
  }
}

/// `example`: a pattern for the refusal of an empty one, which would match every name.
void check_pattern(const RuleCheck& check, const std::string& field, const std::string& pattern,
                   std::string_view owner, std::string_view example) {
  check.require(!pattern.empty(), {field}, format("a {} needs a pattern, such as \"{}\"", owner, example));
  if (pattern.empty()) return;
  const std::string error = pattern_error(pattern);
  check.require(error.empty(), {field}, error);
}

void check_parallelism(const RuleCheck& check) {
  const ParallelismConfig& parallelism = check.config().parallelism;
  check.require(
      parallelism.data_parallel_replicate_degree != -1 || parallelism.data_parallel_shard_degree != -1,
      {"parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"},
      "only one of them can be -1; set the other to a number of ranks");
  check.require(parallelism.context_parallel_degree == 1 ||
                    check.config().training.loss_aggregation == LossAggregation::token_mean,
                {"parallelism.context_parallel_degree", "training.loss_aggregation"},
                "with context parallelism a rank has parts of rows, so an average per rank has no meaning; "
                "set loss_aggregation to \"token_mean\"");
  check.require(
      !parallelism.enable_async_tensor_parallel || parallelism.enable_sequence_parallel,
      {"parallelism.enable_async_tensor_parallel", "parallelism.enable_sequence_parallel"},
      "asynchronous tensor parallelism passes the slices of the tokens that sequence parallelism makes; "
      "set enable_sequence_parallel to true, or enable_async_tensor_parallel to false");
  const int64_t degree = parallelism.context_parallel_degree;
  const int64_t ulysses = parallelism.ulysses_degree;
  check.require(
      degree == 1 || parallelism.context_parallel_method != ContextMethod::hybrid ||
          (ulysses < degree && degree % ulysses == 0),
      {"parallelism.context_parallel_degree", "parallelism.ulysses_degree"},
      "the method \"hybrid\" needs a ulysses_degree that divides context_parallel_degree and is smaller; "
      "change one of them, or use the method \"ulysses\" or \"ring\"");
  for (size_t i = 0; i < parallelism.tensor_parallel_plan.size(); ++i) {
    check_pattern(check, format("parallelism.tensor_parallel_plan.{}.pattern", i),
                  parallelism.tensor_parallel_plan[i].pattern, "rule", "mlp");
  }
  std::set<std::string> seen;
  for (size_t i = 0; i < parallelism.fsdp_prefetch_lists.size(); ++i) {
    const PrefetchListConfig& list = parallelism.fsdp_prefetch_lists[i];
    const std::string name = format("parallelism.fsdp_prefetch_lists.{}", i);
    check.require(seen.insert(list.unit).second, {name + ".unit"},
                  "an earlier table has the same unit; merge the two");
    check.require(!list.forward.empty() || !list.backward.empty(), {name + ".unit"},
                  "both lists of this unit are empty; fill forward or backward, or remove the table");
    const auto require_others = [&](const char* direction, const std::vector<std::string>& units) {
      check.require(std::find(units.begin(), units.end(), list.unit) == units.end(),
                    {format("{}.{}", name, direction)},
                    "the unit itself is already gathered when it computes; remove it");
    };
    require_others("forward", list.forward);
    require_others("backward", list.backward);
  }
}

void check_loss(const RuleCheck& check) {
  const TrainingConfig& training = check.config().training;
  const ParallelismConfig& parallelism = check.config().parallelism;
  const bool is_cross_entropy = training.loss == "cross_entropy";
  check.require(
      is_cross_entropy || parallelism.tensor_parallel_degree == 1 || parallelism.disable_loss_parallel,
      {"training.loss", "parallelism.tensor_parallel_degree"},
      "a loss of a plug-in takes the logits of the whole vocabulary; set "
      "parallelism.disable_loss_parallel = true");
}

/// What a model with a score does not go with.
void check_score(const RuleCheck& check) {
  const Config& config = check.config();
  check.require(!config.preference.scores() || config.model.scores(), {"preference.loss", "model.head"},
                "a reward model has a score in place of a vocabulary; remove model.head");
  if (!config.model.scores()) return;
  const auto refuse = [&](bool condition, const std::string& field, std::string_view remedy) {
    check.require(!condition, {"model.head", field}, remedy);
  };
  refuse(config.sampling.freq > 0, "sampling.freq", "a reward model writes no text; set sampling.freq = 0");
  refuse(config.sampling.at_ends, "sampling.at_ends",
         "a reward model writes no text; remove sampling.at_ends");
}

/// What losses of pairs and of judged answers do not go with.
void check_preference(const RuleCheck& check) {
  const Config& config = check.config();
  if (!config.preference.enabled()) return;
  const TrainingConfig& training = config.training;
  const auto refuse = [&](bool condition, const std::string& field, std::string_view remedy) {
    check.require(!condition, {"preference.loss", field},
                  format("preference.loss weighs whole answers; set {} {}", field, remedy));
  };
  const Packing packing = config.data.packing;
  refuse(packing == Packing::concat || packing == Packing::hard || packing == Packing::preset, "data.packing",
         "to \"best_fit\", which keeps answers whole");
  refuse(config.data.too_long == TooLong::proportional, "data.too_long", "to \"drop\" or \"error\"");
  refuse(training.loss != "cross_entropy", "training.loss", "to \"cross_entropy\"");
  refuse(training.label_smoothing > 0, "training.label_smoothing",
         "to 0; preference.label_smoothing is that of pairs");
  refuse(training.z_loss_weight > 0, "training.z_loss_weight", "to 0");
  refuse(training.loss_reduction != LabelWeights::token, "training.loss_reduction", "to \"token\"");
  refuse(training.loss_aggregation != LossAggregation::token_mean, "training.loss_aggregation",
         "to \"token_mean\"");
  refuse(config.model.n_mtp_layers > 0, "model.n_mtp_layers", "to 0");
}

/// What distillation does not go with.
void check_distillation(const RuleCheck& check) {
  const Config& config = check.config();
  if (!config.distillation.enabled()) return;
  const auto refuse = [&](bool condition, const std::string& field, std::string_view remedy) {
    check.require(!condition, {"distillation.teacher", field},
                  format("a teacher adds to the cross-entropy of single texts; set {} {}", field, remedy));
  };
  refuse(config.preference.enabled(), "preference.loss", "to \"none\"");
  refuse(config.training.loss != "cross_entropy", "training.loss", "to \"cross_entropy\"");
  refuse(config.training.label_smoothing > 0, "training.label_smoothing", "to 0");
  refuse(config.model.n_mtp_layers > 0, "model.n_mtp_layers", "to 0");
}

void check_optimizer(const RuleCheck& check) {
  const auto& groups = check.config().optimizer.param_groups;
  std::set<std::string> seen;
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string name = format("optimizer.param_groups.{}.pattern", i);
    const std::string& pattern = groups[i].pattern;
    check_pattern(check, name, pattern, "group", "embed");
    check.require(pattern.empty() || seen.insert(pattern).second, {name},
                  "an earlier group has the same pattern and takes all its parameters; remove one");
  }
}

void check_activation_checkpoint(const RuleCheck& check) {
  const Config& config = check.config();
  const ActivationCheckpointConfig& recompute = config.activation_checkpoint;
  const std::string mode = "activation_checkpoint.mode";
  const auto check_list = [&](RecomputeMode its_mode, auto list) {
    const std::string_view key = choice_name(its_mode);
    const std::string field = format("activation_checkpoint.{}", key);
    check.require(!list.empty() || recompute.mode != its_mode, {mode, field},
                  format("mode \"{}\" needs a non-empty list", key));
    std::sort(list.begin(), list.end());
    check.require(std::adjacent_find(list.begin(), list.end()) == list.end(), {field},
                  "the list has a duplicate");
  };
  check_list(RecomputeMode::blocks, recompute.blocks);
  check_list(RecomputeMode::regions, recompute.regions);
  check_list(RecomputeMode::calls, recompute.calls);
  const int64_t layers = config.model.n_layers + config.model.n_mtp_layers;
  const bool in_model = std::all_of(recompute.blocks.begin(), recompute.blocks.end(),
                                    [&](int64_t block) { return block < layers; });
  check.require(in_model, {"activation_checkpoint.blocks", "model.n_layers"},
                format("layers are numbered from 0 to {}", layers - 1));
}

void check_run(const RuleCheck& check) {
  const Config& config = check.config();
  check.require(config.machine.hosts == 0 || !config.machine.name.empty(), {"machine.hosts", "machine.name"},
                "these are hosts of no machine; set machine.name, or --machine of `stepforge plan`");
  check.require(
      !config.checkpoint.last_save_in_hf || (config.checkpoint.enable && config.checkpoint.save_at_end),
      {"checkpoint.last_save_in_hf", "checkpoint.enable", "checkpoint.save_at_end"},
      "the Hugging Face folder is made from the last checkpoint; enable saving it, or export later with "
      "`stepforge export`");
  check.require(!config.checkpoint.keep_best || (config.checkpoint.enable && config.validation.freq > 0),
                {"checkpoint.keep_best", "checkpoint.enable", "validation.freq"},
                "the best step is the one with the lowest validation loss; set validation.freq and "
                "checkpoint.enable, or remove keep_best");
  check.require(config.training.early_stopping.patience == 0 || config.validation.freq > 0,
                {"training.early_stopping.patience", "validation.freq"},
                "the validation loss decides when the run ends; set validation.freq, or patience to 0");
  check.require(config.checkpoint.load.counters || !config.checkpoint.load.schedule,
                {"checkpoint.load.counters", "checkpoint.load.schedule"},
                "the position in the schedule is a number of steps; set schedule to false too");
  check.require(
      config.checkpoint.load.data || !config.checkpoint.load.counters || config.training.epochs == 0,
      {"checkpoint.load.data", "training.epochs"},
      "epochs count from the first step of the run; set training.steps instead, or load.counters to false");
  check.require(!config.checkpoint.exclude_frozen || freezes_weights(config),
                {"checkpoint.exclude_frozen", "model.freeze", "adapter.type"},
                "no weights are frozen; name them in model.freeze, add an adapter, or remove exclude_frozen");
  check.require(!config.checkpoint.exclude_frozen || !config.checkpoint.initial_load_path.empty(),
                {"checkpoint.exclude_frozen", "checkpoint.initial_load_path"},
                "frozen weights that checkpoints leave out must be found elsewhere; "
                "start from a model with model.from, or remove exclude_frozen");
  check.require((config.debug.plant_nan_step == -1) == config.debug.plant_nan_block.empty(),
                {"debug.plant_nan_step", "debug.plant_nan_block"}, "set both of them or neither");
}

void require_existing(const RuleCheck& check, const std::string& field, const std::string& path) {
  std::error_code error;
  if (path.empty() || std::filesystem::exists(path, error)) return;
  const bool is_data = field.starts_with("data.");
  const std::string advice = hub_advice(path, is_data ? HubKind::dataset : HubKind::model);
  check.require(false, {field}, format("no such file or folder{}{}", advice.empty() ? "" : "; ", advice));
}

void require_sources(const RuleCheck& check, std::string_view list,
                     const std::vector<DataSourceConfig>& sources) {
  for (const auto& [place, source] : leaf_sources(list, sources)) {
    if (source->kind != kBuiltinSource) continue;
    std::error_code error;
    const bool may_be_indexed = source->format == DataFormat::bin || source->format == DataFormat::automatic;
    if (may_be_indexed && std::filesystem::exists(source->path + ".bin", error)) continue;
    const std::string field = place + ".path";
    // A placeholder for a file or folder that has not been downloaded.
    if (std::filesystem::exists(source->path, error)) {
      const std::string advice = hub_advice(source->path, HubKind::dataset);
      check.require(advice.empty(), {field}, advice);
      try {
        refuse_lfs_pointer(std::filesystem::path(source->path));
      } catch (const Error& fault) {
        check.require(false, {field}, fault.what());
      }
    }
    try {
      for (const auto& path : expand_path(source->path)) require_existing(check, field, path);
    } catch (const Error& fault) {
      check.require(false, {field}, fault.what());
    }
  }
}

}  // namespace

void check_combinations(const LoadedConfig& loaded, const RefusedFields& refused, ErrorList& errors) {
  const RuleCheck check(loaded, refused, errors);
  check_model(check);
  check_adapter(check);
  check_tokenizer(check);
  check_data_section(check);
  check_training(check);
  check_callbacks(check);
  check_micro_batches(check);
  check_ordered(check);
  check_parallelism(check);
  check_loss(check);
  check_score(check);
  check_preference(check);
  check_distillation(check);
  check_optimizer(check);
  check_activation_checkpoint(check);
  check_run(check);
}

void check_data(const LoadedConfig& loaded, const RefusedFields& refused, ErrorList& errors,
                std::vector<std::string>* missing) {
  const RuleCheck check(loaded, refused, errors, missing);
  const Config& config = check.config();
  check.require(!config.data.sources.empty(), {"data.sources"},
                "there is no data; write data.sources = [{ path = \"book.txt\" }]");
  const std::filesystem::path run_tokenizer = std::filesystem::path(config.run_dir) / "tokenizer";
  const bool run_has_tokenizer = std::filesystem::exists(run_tokenizer / "tokenizer.json") ||
                                 std::filesystem::exists(run_tokenizer / "tokenizer.model");
  check.require(
      config.tokenizer.type != TokenizerType::hf || !config.tokenizer.path.empty() || run_has_tokenizer,
      {"tokenizer.type", "tokenizer.path"},
      "set tokenizer.path to the folder of a Hugging Face model or to its tokenizer.json");
  require_existing(check, "tokenizer.path", config.tokenizer.path);
  require_existing(check, "data.preset", config.data.preset);
  require_sources(check, "data.sources", config.data.sources);
  require_sources(check, "data.validation", config.data.validation);
}

namespace {

/// Other commands find the run folder above a checkpoint. They also read runs whose checkpoints lie elsewhere.
void check_checkpoint_folder(const RuleCheck& check) {
  const std::string& folder = check.config().checkpoint.folder;
  check.require(
      is_plain_file_name(folder), {"checkpoint.folder"},
      "checkpoints are kept in one folder inside run_dir; use a name without \"/\", \"\\\" and control "
      "characters, such as \"checkpoint\"");
  constexpr std::array<std::string_view, 12> kOthers = {
      "config.toml", "generation_config.json", "hf",       "initial_adapter",       "log.txt",
      "logs",        "metrics.jsonl",          "run.json", "reference.safetensors", "run.lock",
      "tokenizer",   "teacher.safetensors"};
  check.require(std::ranges::find(kOthers, folder) == kOthers.end(), {"checkpoint.folder"},
                "a run keeps something else under this name; use another, such as \"checkpoint\"");
}

}  // namespace

void check_for_training(const LoadedConfig& loaded, const RefusedFields& refused, ErrorList& errors,
                        std::vector<std::string>* missing) {
  const RuleCheck check(loaded, refused, errors, missing);
  const Config& config = check.config();
  check.require(config.training.steps > 0 || config.training.epochs > 0,
                {"training.steps", "training.epochs"},
                "one of them must set the length of the run, such as training.steps = 1000");
  check.require(
      config.validation.freq == 0 || !config.data.validation.empty() || config.data.validation_fraction > 0 ||
          !config.data.split.empty(),
      {"validation.freq", "data.validation"},
      "there is no validation data; set data.validation, or data.validation_fraction to a value such as 0.01");
  check_checkpoint_folder(check);
  check.require(!config.model.scores() || config.preference.scores(), {"model.head", "preference.loss"},
                "the model is a reward model, which learns from pairs of answers only; set preference.loss = "
                "\"reward\", or start from a model with a vocabulary");
  require_existing(check, "checkpoint.initial_load_path", config.checkpoint.initial_load_path);
}

}  // namespace stepforge
