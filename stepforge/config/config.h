// The whole configuration of a run as plain data: one struct per TOML section, one member per key of the same
// name. A member's initialiser is its default. Its unit, range and description stand beside its name in
// section_*.cpp, from which parsing, validation, help, documentation and printing come.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepforge {

struct RopeScalingConfig {
  std::string type = "none";
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position = 8192;

  bool operator==(const RopeScalingConfig&) const = default;
};

struct ModelConfig {
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
  RopeScalingConfig rope_scaling;
  bool tie_embeddings = false;
  double dropout = 0.0;
  int64_t max_position = 8192;

  bool operator==(const ModelConfig&) const = default;
};

struct TokenizerConfig {
  std::string type = "bytes";
  std::string path;
  int64_t vocab_size = 4096;
  int64_t train_bytes = int64_t{64} << 20;

  bool operator==(const TokenizerConfig&) const = default;
};

struct DataSourceConfig {
  std::string path;
  double weight = 1.0;
  std::string field = "text";
  std::string format = "auto";

  bool operator==(const DataSourceConfig&) const = default;
};

struct DataConfig {
  std::vector<DataSourceConfig> sources;
  std::vector<DataSourceConfig> validation;
  double validation_fraction = 0.0;
  std::string document = "file";
  bool shuffle = true;
  int64_t seed = 42;
  int64_t prefetch = 2;
  std::string cache_dir;
  int64_t synthetic_tokens = int64_t{1} << 20;
  int64_t synthetic_document_length = 0;

  bool operator==(const DataConfig&) const = default;
};

struct TrainingConfig {
  int64_t seq_len = 2048;
  int64_t local_batch_size = 8;
  int64_t global_batch_size = -1;
  int64_t steps = 0;
  int64_t epochs = 0;
  int64_t seed = 42;
  double max_norm = 1.0;
  std::string norm_type = "l2";
  std::string loss_aggregation = "token_mean";
  std::string nonfinite = "stop";
  int64_t max_skipped = 10;
  std::string reduction = "fast";
  int64_t threads = 0;
  int64_t loss_chunk = 0;

  bool operator==(const TrainingConfig&) const = default;
};

struct PrecisionConfig {
  std::string compute = "fp32";
  std::string reduce = "fp32";

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
  bool decay_all = false;
  std::vector<ParamGroupConfig> param_groups;

  bool operator==(const OptimizerConfig&) const = default;
};

struct LrSchedulerConfig {
  int64_t warmup_steps = 200;
  int64_t total_steps = 0;
  double decay_ratio = -1.0;
  std::string decay_type = "linear";
  double min_lr_factor = 0.0;

  bool operator==(const LrSchedulerConfig&) const = default;
};

struct PrefetchListConfig {
  std::string unit;
  std::vector<std::string> forward;
  std::vector<std::string> backward;

  bool operator==(const PrefetchListConfig&) const = default;
};

struct ParallelismConfig {
  int64_t data_parallel_replicate_degree = 1;
  int64_t data_parallel_shard_degree = -1;
  std::string fsdp_reshard_after_forward = "default";
  int64_t fsdp_reshard_every_n = 2;
  std::string fsdp_partition = "flat";
  int64_t fsdp_forward_prefetch = 1;
  int64_t fsdp_backward_prefetch = 1;
  std::vector<PrefetchListConfig> fsdp_prefetch_lists;
  int64_t fsdp_reduce_in_flight = 1;
  bool fsdp_reduce_each_micro_batch = false;
  bool fsdp_cpu_offload = false;

  bool operator==(const ParallelismConfig&) const = default;
};

struct CommConfig {
  std::string backend = "auto";
  std::string interface;
  double init_timeout = 300.0;
  double train_timeout = 100.0;

  bool operator==(const CommConfig&) const = default;
};

struct ActivationCheckpointConfig {
  std::string mode = "none";
  int64_t every_n = 2;
  std::vector<int64_t> blocks;
  std::vector<std::string> regions;

  bool operator==(const ActivationCheckpointConfig&) const = default;
};

struct CheckpointConfig {
  bool enable = true;
  std::string folder = "checkpoint";
  int64_t interval = 500;
  int64_t keep_latest_k = 10;
  bool save_at_end = true;
  bool last_save_in_hf = false;
  std::string export_dtype = "fp32";
  bool async = true;
  double timeout = 1800;
  bool resume = true;
  int64_t load_step = -1;
  std::vector<std::string> allow_changed;
  std::string initial_load_path;
  bool initial_load_model_only = true;

  bool operator==(const CheckpointConfig&) const = default;
};

struct ValidationConfig {
  int64_t freq = 0;
  int64_t steps = -1;

  bool operator==(const ValidationConfig&) const = default;
};

struct SamplingConfig {
  int64_t freq = 0;
  std::string prompt;
  int64_t max_tokens = 64;
  double temperature = 0.8;
  int64_t top_k = 50;
  int64_t seed = 42;

  bool operator==(const SamplingConfig&) const = default;
};

struct MetricsConfig {
  int64_t log_freq = 10;
  double peak_tflops = 0.0;
  bool enable_jsonl = true;
  double smoothing = 0.9;
  std::string status_line = "auto";

  bool operator==(const MetricsConfig&) const = default;
};

struct DebugConfig {
  bool print_config = false;
  int64_t plant_nan_step = -1;
  std::string plant_nan_block;

  bool operator==(const DebugConfig&) const = default;
};

struct Config {
  std::string preset;
  std::string run_dir = "runs/default";
  ModelConfig model;
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
  DebugConfig debug;

  bool operator==(const Config&) const = default;
};

}  // namespace stepforge
