// SPDX-License-Identifier: Apache-2.0
// The configuration of a run as plain data: one struct per TOML section, and one member per key with the same
// name and the default value. Units, ranges and descriptions are in section_*.cpp. A choice is an enum;
// choice_names returns the TOML names of its values, in the order of the values.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/choices.h"
#include "stepforge/base/dtype.h"
#include "stepforge/base/weight_code.h"
#include "stepforge/config/extensions.h"

namespace stepforge {

template <size_t count>
using ChoiceNames = std::array<std::string_view, count>;

/// The TOML name of a choice.
template <typename Choice>
constexpr std::string_view choice_name(Choice value) {
  return choice_names(value).at(static_cast<size_t>(value));
}

/// The floating-point types; each field accepts some of them.
inline ChoiceNames<4> choice_names(DType) {
  return {dtype_name(DType::f64), dtype_name(DType::f32), dtype_name(DType::f16), dtype_name(DType::bf16)};
}

constexpr ChoiceNames<6> choice_names(RopeScalingType) {
  return {"none", "linear", "dynamic", "llama3", "yarn", "longrope"};
}

enum class TokenizerType : uint8_t { bytes, bpe, hf };
constexpr ChoiceNames<3> choice_names(TokenizerType) {
  return {"bytes", "bpe", "hf"};
}

enum class DigitChoice : uint8_t { pattern, one, three };
constexpr ChoiceNames<3> choice_names(DigitChoice) {
  return {"pattern", "one", "three"};
}

enum class DataFormat : uint8_t {
  automatic,
  text,
  jsonl,
  csv,
  mds,
  bin,
  tokens_u16,
  tokens_u32,
  synthetic,
  messages,
  sharegpt,
  alpaca,
  prompt_completion,
  preference,
  unpaired_preference
};
constexpr ChoiceNames<15> choice_names(DataFormat) {
  return {"auto",
          "text",
          "jsonl",
          "csv",
          "mds",
          "bin",
          "tokens_u16",
          "tokens_u32",
          "synthetic",
          "messages",
          "sharegpt",
          "alpaca",
          "prompt_completion",
          "preference",
          "unpaired_preference"};
}

enum class LossOnMessages : uint8_t { assistant, last, all };
constexpr ChoiceNames<3> choice_names(LossOnMessages) {
  return {"assistant", "last", "all"};
}

constexpr ChoiceNames<7> choice_names(Packing) {
  return {"concat", "hard", "soft", "best_fit", "none", "budget", "preset"};
}

enum class BadRecordAction : uint8_t { stop, skip };
constexpr ChoiceNames<2> choice_names(BadRecordAction) {
  return {"stop", "skip"};
}

enum class SourceCombine : uint8_t { mix, concat };
constexpr ChoiceNames<2> choice_names(SourceCombine) {
  return {"mix", "concat"};
}

constexpr ChoiceNames<3> choice_names(ShareOf) {
  return {"rows", "tokens", "samples"};
}

enum class EpochRemainder : uint8_t { carry, smaller_step };
constexpr ChoiceNames<2> choice_names(EpochRemainder) {
  return {"carry", "smaller_step"};
}

constexpr ChoiceNames<4> choice_names(TooLong) {
  return {"cut", "drop", "error", "proportional"};
}

enum class DocumentUnit : uint8_t { file, line, paragraph };
constexpr ChoiceNames<3> choice_names(DocumentUnit) {
  return {"file", "line", "paragraph"};
}

enum class ClipNorm : uint8_t { l1, l2, l3, inf };
constexpr ChoiceNames<4> choice_names(ClipNorm) {
  return {"l1", "l2", "l3", "inf"};
}

constexpr ChoiceNames<3> choice_names(LabelWeights) {
  return {"token", "sample", "square"};
}

enum class LossAggregation : uint8_t {
  token_mean,    ///< the mean over all valid labels of the step, on all ranks
  rank_average,  ///< the average over ranks of each rank's mean over its own valid labels
};
constexpr ChoiceNames<2> choice_names(LossAggregation) {
  return {"token_mean", "rank_average"};
}

enum class NonfiniteAction : uint8_t { stop, skip };
constexpr ChoiceNames<2> choice_names(NonfiniteAction) {
  return {"stop", "skip"};
}

enum class ReductionMode : uint8_t { fast, ordered };
constexpr ChoiceNames<2> choice_names(ReductionMode) {
  return {"fast", "ordered"};
}

enum class MuonScale : uint8_t { rms, spectral };
constexpr ChoiceNames<2> choice_names(MuonScale) {
  return {"rms", "spectral"};
}

constexpr ChoiceNames<4> choice_names(ReshardMode) {
  return {"default", "always", "never", "every_n"};
}

constexpr ChoiceNames<3> choice_names(PartitionKind) {
  return {"flat", "by_tensor", "by_dim"};
}

constexpr ChoiceNames<4> choice_names(ContextMethod) {
  return {"allgather", "ring", "ulysses", "hybrid"};
}

constexpr ChoiceNames<2> choice_names(DispatchMethod) {
  return {"alltoall", "allgather"};
}

enum class TensorStyle : uint8_t { colwise, rowwise, replicate };
constexpr ChoiceNames<3> choice_names(TensorStyle) {
  return {"colwise", "rowwise", "replicate"};
}

enum class LoadBalance : uint8_t { head_tail, none };
constexpr ChoiceNames<2> choice_names(LoadBalance) {
  return {"head_tail", "none"};
}

enum class CommBackend : uint8_t { automatic, shared_memory, gloo, nccl };
constexpr ChoiceNames<4> choice_names(CommBackend) {
  return {"auto", "shared_memory", "gloo", "nccl"};
}

constexpr ChoiceNames<7> choice_names(RecomputeMode) {
  return {"none", "full", "every_n", "blocks", "regions", "calls", "budget"};
}

enum class RecomputeRegion : uint8_t { attention, mlp };
constexpr ChoiceNames<2> choice_names(RecomputeRegion) {
  return {"attention", "mlp"};
}

/// What a guarded field affects. A resume may change the field only if checkpoint.allow_changed permits it.
enum class Guard : uint8_t { model, seed, data, batch };
constexpr ChoiceNames<4> choice_names(Guard) {
  return {"model", "seed", "data", "batch"};
}

enum class StatusLineMode : uint8_t { automatic, on, off };
constexpr ChoiceNames<3> choice_names(StatusLineMode) {
  return {"auto", "on", "off"};
}

enum class RouterMetrics : uint8_t { off, summary, experts };
constexpr ChoiceNames<3> choice_names(RouterMetrics) {
  return {"off", "summary", "experts"};
}

struct RopeScalingConfig {
  RopeScalingType type = RopeScalingType::none;
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position = 8192;
  double attention_factor = 0.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 0.0;
  double mscale_all_dim = 0.0;
  bool truncate = true;
  std::vector<double> short_factor = {};
  std::vector<double> long_factor = {};

  bool operator==(const RopeScalingConfig&) const = default;
};

/// Which keys a query of a layer sees.
enum class AttentionKind : uint8_t { full_attention, sliding_attention };
constexpr ChoiceNames<2> choice_names(AttentionKind) {
  return {"full_attention", "sliding_attention"};
}

/// Types of numbers; the codes of base/weight_code.h follow in their order.
enum class FrozenDType : uint8_t { fp32, bf16, first_code };
constexpr ChoiceNames<2 + kWeightCodes.size()> choice_names(FrozenDType) {
  ChoiceNames<2 + kWeightCodes.size()> names{"fp32", "bf16"};
  for (size_t i = 0; i < kWeightCodes.size(); ++i) names[2 + i] = kWeightCodes[i].name;
  return names;
}
/// How weights of this type are stored.
constexpr WeightStorage storage_of(FrozenDType dtype) {
  if (dtype < FrozenDType::first_code) return {dtype == FrozenDType::bf16 ? DType::bf16 : DType::f32};
  const auto code = static_cast<size_t>(dtype) - static_cast<size_t>(FrozenDType::first_code);
  return {DType::u8, kWeightCodes.at(code).code};
}

/// What a model makes of its last hidden states: logits of the vocabulary, or one number, the score of a reward model.
enum class HeadKind : uint8_t { vocabulary, score };
constexpr ChoiceNames<2> choice_names(HeadKind) {
  return {"vocabulary", "score"};
}

struct ModelConfig {
  std::string from;
  std::string family = "llama";
  int64_t dim = 256;
  int64_t n_layers = 6;
  int64_t n_heads = 8;
  int64_t n_kv_heads = 4;
  int64_t head_dim = 0;
  int64_t ffn_dim = 704;
  int64_t vocab_size = 0;
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;
  double rope_local_theta = 0.0;
  RopeScalingConfig rope_scaling;
  int64_t sliding_window = 0;
  std::vector<AttentionKind> layer_types;
  int64_t query_pre_attn_scalar = 0;
  double attention_softcap = 0.0;
  int64_t q_lora_rank = 0;
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  double logit_softcap = 0.0;
  int64_t n_experts = 0;
  int64_t experts_per_token = 0;
  int64_t moe_ffn_dim = 0;
  int64_t shared_expert_dim = 0;
  int64_t n_shared_experts = 0;
  bool norm_topk_prob = false;
  double routed_scaling_factor = 1.0;
  int64_t n_expert_groups = 1;
  int64_t groups_per_token = 1;
  int64_t moe_layer_freq = 1;
  int64_t first_dense_layers = 0;
  std::vector<int64_t> dense_layers;
  double router_aux_loss_weight = 0.0;
  double router_z_loss_weight = 0.0;
  double router_bias_update_speed = 0.0;
  int64_t n_mtp_layers = 0;
  double mtp_loss_weight = 0.3;
  bool tie_embeddings = false;
  HeadKind head = HeadKind::vocabulary;
  double score_init_std = 0.02;
  double dropout = 0.0;
  int64_t max_position = 8192;
  std::vector<std::string> freeze;
  FrozenDType frozen_dtype = FrozenDType::fp32;
  bool double_quantization = false;
  /// Plug-ins, in which `family` is looked up after the built-in families; not a setting. Null without plug-ins.
  std::shared_ptr<const Registry> plugins;

  bool scores() const { return head == HeadKind::score; }
  /// Whether its head has the weights of the embedding; a score has its own.
  bool ties() const { return tie_embeddings && !scores(); }
  bool operator==(const ModelConfig&) const = default;
};
/// How its frozen weights are stored.
inline WeightStorage storage_of(const ModelConfig& model) {
  WeightStorage storage = storage_of(model.frozen_dtype);
  storage.coded_factors = model.double_quantization;
  return storage;
}

enum class AdapterType : uint8_t { none, lora, dora };
constexpr ChoiceNames<3> choice_names(AdapterType) {
  return {"none", "lora", "dora"};
}

enum class PreferenceLoss : uint8_t {
  none,
  dpo,
  hinge,
  ipo,
  cpo,
  simpo,
  orpo,
  reward,
  kto,
  apo_zero_unpaired
};
constexpr ChoiceNames<10> choice_names(PreferenceLoss) {
  return {"none", "dpo", "hinge", "ipo", "cpo", "simpo", "orpo", "reward", "kto", "apo_zero_unpaired"};
}

enum class AdapterInit : uint8_t { kaiming, gaussian, pissa };
constexpr ChoiceNames<3> choice_names(AdapterInit) {
  return {"kaiming", "gaussian", "pissa"};
}

/// Which biases of the model are trained beside adapters: those of every module, or of the modules that have one.
enum class AdapterBias : uint8_t { none, all, lora_only };
constexpr ChoiceNames<3> choice_names(AdapterBias) {
  return {"none", "all", "lora_only"};
}

enum class ExpertAdapters : uint8_t { each, shared_a };
constexpr ChoiceNames<2> choice_names(ExpertAdapters) {
  return {"each", "shared_a"};
}

struct AdapterPatternConfig {
  std::string pattern;
  int64_t rank = 0;
  double alpha = 0.0;

  bool operator==(const AdapterPatternConfig&) const = default;
};

struct AdapterConfig {
  AdapterType type = AdapterType::none;
  std::string from;
  int64_t rank = 16;
  double alpha = 32.0;
  double dropout = 0.0;
  std::vector<std::string> targets = {"all-linear"};
  std::vector<int64_t> layers;
  std::vector<AdapterPatternConfig> patterns;
  ExpertAdapters experts = ExpertAdapters::each;
  bool rslora = false;
  AdapterInit init = AdapterInit::kaiming;
  int64_t svd_iterations = 0;
  double b_lr_ratio = 1.0;
  std::vector<std::string> also_train;
  AdapterBias bias = AdapterBias::none;

  bool enabled() const { return type != AdapterType::none; }
  /// Whether it starts with parts of the weights, which the frozen ones then lack.
  bool takes_parts() const { return enabled() && init == AdapterInit::pissa; }
  bool operator==(const AdapterConfig&) const = default;
};

struct PreferenceConfig {
  PreferenceLoss loss = PreferenceLoss::none;
  std::string reference;
  double beta = -1.0;
  double label_smoothing = 0.0;
  double margin = -1.0;
  bool length_normalized = false;
  double sft_weight = -1.0;
  double center_weight = 0.0;
  double desirable_weight = 1.0;
  double undesirable_weight = 1.0;

  bool enabled() const { return loss != PreferenceLoss::none; }
  /// Learns from single answers that are judged, and not from pairs.
  bool unpaired() const { return loss == PreferenceLoss::kto || loss == PreferenceLoss::apo_zero_unpaired; }
  bool scores() const { return loss == PreferenceLoss::reward; }
  bool operator==(const PreferenceConfig&) const = default;
};

struct DistillationConfig {
  std::string teacher;
  int64_t top_k = 64;
  double weight = 0.5;
  double temperature = 1.0;

  bool enabled() const { return !teacher.empty(); }
  bool operator==(const DistillationConfig&) const = default;
};

struct TokenizerConfig {
  TokenizerType type = TokenizerType::bytes;
  std::string path;
  int64_t vocab_size = 4096;
  int64_t train_bytes = int64_t{64} << 20;
  std::vector<std::string> special_tokens;
  std::string eos_token;
  std::string bos_token;
  int64_t min_frequency = 2;
  std::string pattern = "llama3";
  DigitChoice digits = DigitChoice::pattern;

  bool operator==(const TokenizerConfig&) const = default;
};

inline constexpr std::string_view kBuiltinSource = "builtin";  ///< DataSourceConfig::kind

/// A source, or a group of sources.
struct DataSourceConfig {
  std::string path = {};
  std::string kind{kBuiltinSource};
  double weight = 1.0;
  std::string field = "text";
  DataFormat format = DataFormat::automatic;
  LossOnMessages loss_on = LossOnMessages::assistant;
  std::string dataset = {};
  std::string name = {};
  double epochs = -1.0;  ///< -1: weight applies
  SourceCombine combine = SourceCombine::mix;
  std::vector<DataSourceConfig> sources = {};

  bool operator==(const DataSourceConfig&) const = default;
};

struct DataFilterConfig {
  int64_t min_bytes = 0;
  int64_t max_bytes = 0;
  int64_t min_words = 0;
  int64_t max_words = 0;
  double max_symbols = 1.0;
  double min_mean_word_length = 0.0;
  double max_mean_word_length = 0.0;
  double max_repeated_lines = 1.0;
  std::vector<std::string> include;
  std::vector<std::string> exclude;

  bool operator==(const DataFilterConfig&) const = default;
};

struct DataConfig {
  std::vector<DataSourceConfig> sources;
  std::vector<DataSourceConfig> validation;
  double validation_fraction = 0.0;
  std::string split;
  DocumentUnit document = DocumentUnit::file;
  DataFilterConfig filter;
  bool deduplicate = false;
  BadRecordAction on_bad_record = BadRecordAction::stop;
  int64_t max_bad_records = 100;
  Packing packing = Packing::concat;
  std::string preset;
  bool group_by_length = false;
  bool balance = false;
  TooLong too_long = TooLong::cut;
  std::string chat_template;
  bool bos = true;
  bool eos = true;
  bool shuffle = true;
  ShareOf weights_by = ShareOf::rows;
  double temperature = 0.0;
  EpochRemainder epoch_remainder = EpochRemainder::carry;
  int64_t seed = 42;
  int64_t prefetch = 2;
  std::string cache_dir;
  int64_t synthetic_tokens = int64_t{1} << 20;
  int64_t synthetic_document_length = 0;

  bool operator==(const DataConfig&) const = default;
};

struct EarlyStoppingConfig {
  int64_t patience = 0;
  double min_gain = 0.0;

  bool operator==(const EarlyStoppingConfig&) const = default;
};

struct TrainingConfig {
  int64_t seq_len = 2048;
  int64_t local_batch_size = 8;
  int64_t global_batch_size = -1;
  int64_t steps = 0;
  int64_t epochs = 0;
  int64_t seed = 42;
  double max_norm = 1.0;
  ClipNorm norm_type = ClipNorm::l2;
  LabelWeights loss_reduction = LabelWeights::token;
  LossAggregation loss_aggregation = LossAggregation::token_mean;
  std::string loss = "cross_entropy";
  double label_smoothing = 0.0;
  double z_loss_weight = 0.0;
  NonfiniteAction nonfinite = NonfiniteAction::stop;
  int64_t max_skipped = 10;
  ReductionMode reduction = ReductionMode::fast;
  std::string device = "auto";
  int64_t threads = 0;
  int64_t loss_chunk = 0;
  EarlyStoppingConfig early_stopping;
  std::vector<std::string> callbacks = {"all"};

  bool operator==(const TrainingConfig&) const = default;
};

struct PrecisionConfig {
  DType compute = DType::f32;
  DType reduce = DType::f32;

  bool operator==(const PrecisionConfig&) const = default;
};

struct ParamGroupConfig {
  std::string pattern;
  double lr = -1.0;
  double weight_decay = -1.0;
  double beta1 = -1.0;
  double beta2 = -1.0;

  bool operator==(const ParamGroupConfig&) const = default;
};

struct OptimizerConfig {
  std::string name = "adamw";
  double lr = 8e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  MuonScale muon_scale = MuonScale::rms;
  int64_t muon_iterations = 5;
  DType muon_compute = DType::bf16;
  bool decay_all = false;
  std::vector<ParamGroupConfig> param_groups;

  bool operator==(const OptimizerConfig&) const = default;
};

struct LrSchedulerConfig {
  int64_t warmup_steps = 200;
  double warmup_ratio = -1.0;
  int64_t total_steps = 0;
  double decay_ratio = -1.0;
  std::string decay_type = "linear";
  int64_t cycles = 1;
  double power = 2.0;
  double min_lr_factor = 0.0;

  bool operator==(const LrSchedulerConfig&) const = default;
};

struct PrefetchListConfig {
  std::string unit;
  std::vector<std::string> forward;
  std::vector<std::string> backward;

  bool operator==(const PrefetchListConfig&) const = default;
};

inline constexpr std::string_view kBuiltinPlan = "builtin";  ///< ParallelismConfig::plan

struct TensorPlanRule {
  std::string pattern;
  TensorStyle style = TensorStyle::replicate;

  bool operator==(const TensorPlanRule&) const = default;
};

struct StageConfig {
  std::vector<std::string> blocks;

  bool operator==(const StageConfig&) const = default;
};

struct ParallelismConfig {
  int64_t data_parallel_replicate_degree = 1;
  int64_t data_parallel_shard_degree = -1;
  int64_t tensor_parallel_degree = 1;
  bool enable_sequence_parallel = true;
  bool enable_async_tensor_parallel = false;
  bool disable_loss_parallel = false;
  std::string plan{kBuiltinPlan};
  std::vector<TensorPlanRule> tensor_parallel_plan;
  int64_t context_parallel_degree = 1;
  ContextMethod context_parallel_method = ContextMethod::allgather;
  int64_t ulysses_degree = 2;
  LoadBalance context_parallel_load_balance = LoadBalance::head_tail;
  int64_t expert_parallel_degree = 1;
  int64_t expert_tensor_parallel_degree = 1;
  DispatchMethod expert_parallel_dispatcher = DispatchMethod::all_to_all;
  bool expert_parallel_overlap = false;
  int64_t pipeline_parallel_degree = 1;
  std::string pipeline_parallel_schedule = "1F1B";
  std::string pipeline_parallel_schedule_csv;
  int64_t pipeline_parallel_microbatch_size = 0;
  int64_t pipeline_parallel_layers_per_stage = 0;
  int64_t pipeline_parallel_first_stage_less_layers = -1;
  int64_t pipeline_parallel_last_stage_less_layers = -1;
  std::vector<StageConfig> pipeline_parallel_stages;
  ReshardMode fsdp_reshard_after_forward = ReshardMode::by_default;
  int64_t fsdp_reshard_every_n = 2;
  PartitionKind fsdp_partition = PartitionKind::flat;
  int64_t fsdp_forward_prefetch = 1;
  int64_t fsdp_backward_prefetch = 1;
  std::vector<PrefetchListConfig> fsdp_prefetch_lists;
  int64_t fsdp_reduce_in_flight = 1;
  bool fsdp_reduce_each_micro_batch = false;
  bool fsdp_cpu_offload = false;

  bool operator==(const ParallelismConfig&) const = default;
};

struct CommConfig {
  CommBackend backend = CommBackend::automatic;
  std::string interface;
  double init_timeout = 300.0;
  double train_timeout = 100.0;

  bool operator==(const CommConfig&) const = default;
};

struct ActivationCheckpointConfig {
  RecomputeMode mode = RecomputeMode::none;
  int64_t every_n = 2;
  std::vector<int64_t> blocks;
  std::vector<RecomputeRegion> regions;
  std::vector<std::string> calls;
  double memory_budget = 0.5;

  bool operator==(const ActivationCheckpointConfig&) const = default;
};

/// What is loaded from a checkpoint in addition to the weights.
struct CheckpointLoadConfig {
  bool optimizer = true;
  bool schedule = true;
  bool data = true;
  bool counters = true;

  bool operator==(const CheckpointLoadConfig&) const = default;
};

struct CheckpointConfig {
  bool enable = true;
  std::string folder = "checkpoint";
  int64_t interval = 500;
  int64_t keep_latest_k = 10;
  bool keep_best = false;
  bool save_at_end = true;
  bool last_save_in_hf = false;
  DType export_dtype = DType::f32;
  bool async = true;
  double timeout = 1800;
  bool resume = true;
  int64_t load_step = -1;
  std::vector<Guard> allow_changed;
  std::string initial_load_path;
  bool initial_load_model_only = true;
  CheckpointLoadConfig load;
  bool exclude_frozen = false;
  bool strict = true;

  bool operator==(const CheckpointConfig&) const = default;
};

struct ValidationConfig {
  int64_t freq = 0;
  int64_t steps = -1;

  bool operator==(const ValidationConfig&) const = default;
};

struct SamplingConfig {
  int64_t freq = 0;
  bool at_ends = false;
  std::string prompt;
  int64_t max_tokens = 64;
  double temperature = 0.8;
  int64_t top_k = 50;
  int64_t seed = 42;

  bool enabled() const { return freq > 0 || at_ends; }
  bool operator==(const SamplingConfig&) const = default;
};

struct MetricsConfig {
  int64_t log_freq = 10;
  double peak_tflops = 0.0;
  bool enable_jsonl = true;
  double smoothing = 0.9;
  StatusLineMode status_line = StatusLineMode::automatic;
  RouterMetrics router = RouterMetrics::summary;

  bool operator==(const MetricsConfig&) const = default;
};

struct KernelsConfig {
  bool reference = false;

  bool operator==(const KernelsConfig&) const = default;
};

struct DebugConfig {
  bool print_config = false;
  bool prove_layout = false;
  int64_t check_copies_freq = 0;
  int64_t plant_nan_step = -1;
  std::string plant_nan_block;

  bool operator==(const DebugConfig&) const = default;
};

struct MachineConfig {
  std::string name;
  int64_t hosts = 0;

  bool operator==(const MachineConfig&) const = default;
};

struct ExperimentalConfig {
  std::vector<std::string> custom_import;

  bool operator==(const ExperimentalConfig&) const = default;
};

struct Config {
  std::string preset;
  std::string run_dir = "runs/default";
  ModelConfig model;
  AdapterConfig adapter;
  PreferenceConfig preference;
  DistillationConfig distillation;
  TokenizerConfig tokenizer;
  DataConfig data;
  TrainingConfig training;
  PrecisionConfig precision;
  OptimizerConfig optimizer;
  LrSchedulerConfig lr_scheduler;
  ParallelismConfig parallelism;
  CommConfig comm;
  ActivationCheckpointConfig activation_checkpoint;
  CheckpointConfig checkpoint;
  ValidationConfig validation;
  SamplingConfig sampling;
  MetricsConfig metrics;
  KernelsConfig kernels;
  DebugConfig debug;
  MachineConfig machine;
  ExperimentalConfig experimental;
  Extensions extensions;  ///< the sections of plug-ins

  bool operator==(const Config&) const = default;
};

}  // namespace stepforge
