// SPDX-License-Identifier: Apache-2.0
#include "stepforge/prove/prove_layout.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/temporary_folder.h"
#include "stepforge/catalog/families.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/comm/shared_memory.h"
#include "stepforge/modelspec/call_budget.h"
#include "stepforge/modelspec/calls/experts.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/lookup.h"
#include "stepforge/modelspec/calls/loss.h"
#include "stepforge/modelspec/calls/low_rank.h"
#include "stepforge/plan/job.h"
#include "stepforge/plan/job_mesh.h"
#include "stepforge/plan/pipeline_plan.h"
#include "stepforge/prove/exact_model.h"
#include "stepforge/prove/exact_pairs.h"
#include "stepforge/prove/exact_teacher.h"
#include "stepforge/tensorfile/tensor_folder.h"

namespace stepforge {

namespace {

constexpr int64_t kSteps = 4;

/// Ranks over which the experts of the exact model, 6, are spread if those of a job are: all of dp_shard x cp x tp / etp if
/// `all` and they can be, otherwise as few as possible.
int64_t small_experts(const ParallelDims& dims, bool all) {
  const int64_t ranks = dims.dp_shard * dims.cp * dims.tp / dims.etp;
  if (dims.ep == 1) return 1;
  if (all && 6 % ranks == 0) return ranks;
  return ranks % 2 == 0 ? 2 : 3;
}

/// Every degree above 1 becomes 2 or 3, but cp becomes 4 where groups of neighbours attend together. Only the
/// first odd multiple of 3 becomes 3, so that short rows can be divided.
ParallelDims small_dims(ParallelDims dims) {
  const bool all_ranks = dims.ep == dims.dp_shard * dims.cp * dims.tp / dims.etp;
  bool has_three = false;
  const bool hybrid = dims.cp_heads > 1 && dims.cp_heads < dims.cp;
  for (int64_t* degree : {&dims.dp_replicate, &dims.dp_shard, &dims.cp, &dims.tp, &dims.pp}) {
    if (*degree == 1) continue;
    const bool three = !has_three && *degree % 2 != 0 && *degree % 3 == 0;
    has_three = has_three || three;
    *degree = three ? 3 : 2;
  }
  if (hybrid) {
    dims.cp = 4;
    dims.cp_heads = 2;
  }
  if (dims.etp > 1) dims.etp = dims.tp;
  dims.ep = small_experts(dims, all_ranks);
  return dims;
}

ParallelDims dims_of(const Config& job) {
  const ParallelismConfig& parallelism = job.parallelism;
  return {.dp_replicate = parallelism.data_parallel_replicate_degree,
          .dp_shard = parallelism.data_parallel_shard_degree,
          .cp = parallelism.context_parallel_degree,
          .tp = parallelism.tensor_parallel_degree,
          .pp = parallelism.pipeline_parallel_degree,
          .ep = parallelism.expert_parallel_degree,
          .cp_heads = plan_context(job).heads(),
          .etp = parallelism.expert_tensor_parallel_degree};
}

Config with_dims(Config job, const ParallelDims& dims) {
  job.parallelism.data_parallel_replicate_degree = dims.dp_replicate;
  job.parallelism.data_parallel_shard_degree = dims.dp_shard;
  job.parallelism.context_parallel_degree = dims.cp;
  if (dims.cp_heads > 1) job.parallelism.ulysses_degree = dims.cp_heads;
  job.parallelism.tensor_parallel_degree = dims.tp;
  job.parallelism.pipeline_parallel_degree = dims.pp;
  job.parallelism.expert_parallel_degree = dims.ep;
  job.parallelism.expert_tensor_parallel_degree = dims.etp;
  return job;
}

/// Cuts the exact model into as many stages for each rank as the job has, of about equally many blocks. `stages`: 1 of
/// a job without stages.
void set_small_stages(Config& job, int64_t stages) {
  ParallelismConfig& parallelism = job.parallelism;
  parallelism.pipeline_parallel_layers_per_stage = 0;
  parallelism.pipeline_parallel_first_stage_less_layers = -1;
  parallelism.pipeline_parallel_last_stage_less_layers = -1;
  parallelism.pipeline_parallel_stages.clear();
  job.model.n_layers = std::max<int64_t>(kExactLayers, stages - 2);
  if (stages == 1) return;
  std::vector<std::string> blocks = {"embedding"};
  for (int64_t layer = 0; layer < job.model.n_layers; ++layer) blocks.push_back(format("layers.{}", layer));
  blocks.emplace_back("head");
  parallelism.pipeline_parallel_stages.resize(static_cast<size_t>(stages));
  for (size_t b = 0; b < blocks.size(); ++b) {
    const size_t stage = b * static_cast<size_t>(stages) / blocks.size();
    parallelism.pipeline_parallel_stages[stage].blocks.push_back(blocks[b]);
  }
}

/// The same job without a pipeline, on one rank.
Config on_one_rank(Config job) {
  job = with_dims(std::move(job), {.dp_shard = 1});
  job.parallelism.pipeline_parallel_schedule = ParallelismConfig().pipeline_parallel_schedule;
  job.parallelism.pipeline_parallel_schedule_csv.clear();
  job.parallelism.pipeline_parallel_stages.clear();
  return job;
}

ExactModel exact_model_of(const Config& job) {
  const bool mtp = job.model.n_mtp_layers > 0;
  if (family_of(job.model).traits.biased_experts) return ExactModel::biased;
  if (job.model.n_experts > 0) return mtp ? ExactModel::mtp_experts : ExactModel::experts;
  if (mtp) return ExactModel::mtp;
  return job.model.ties() && !job.adapter.enabled() ? ExactModel::shared : ExactModel::plain;
}

/// Without lists that name other units than those of the exact model.
void keep_known_units(ParallelismConfig& parallelism, bool tied, int64_t layers) {
  std::vector<std::string> known = {"embedding"};
  if (!tied) known.emplace_back("head");
  for (int64_t layer = 0; layer < layers; ++layer) known.push_back(format("layers.{}", layer));
  const auto unknown = [&](const std::string& unit) { return std::ranges::find(known, unit) == known.end(); };
  auto& lists = parallelism.fsdp_prefetch_lists;
  for (PrefetchListConfig& list : lists) {
    std::erase_if(list.forward, unknown);
    std::erase_if(list.backward, unknown);
  }
  std::erase_if(lists, [&](const PrefetchListConfig& list) {
    return unknown(list.unit) || (list.forward.empty() && list.backward.empty());
  });
}

/// What the small job can recompute of that, or something like it.
void keep_known_parts(ActivationCheckpointConfig& recompute, const ModelSpec& small) {
  const int64_t layers = small.layers;
  if (recompute.mode == RecomputeMode::calls) {
    std::erase_if(recompute.calls, [&](const std::string& call) {
      return std::ranges::none_of(small.blocks, [&](const BlockSpec& block) {
        return block.kind == BlockKind::layer && std::ranges::count(call_names(block), call) > 0;
      });
    });
    if (recompute.calls.empty()) recompute.calls = {"swiglu"};
  }
  if (recompute.mode != RecomputeMode::blocks) return;
  std::erase_if(recompute.blocks, [&](int64_t block) { return block >= layers; });
  if (recompute.blocks.empty()) recompute.blocks = {0};
}

/// Numbers of a step by their names, in the same order on all ranks.
using NamedNumbers = std::vector<std::pair<std::string, double>>;

/// Losses and norms of the steps of one rank, and the figures of answers and of a teacher where they are logged.
class StepNumbers : public Callback {
 public:
  explicit StepNumbers(std::vector<NamedNumbers>& steps) : steps_(steps) {}
  std::string_view name() const override { return "step numbers"; }
  void step_end(Trainer& trainer) override {
    steps_.push_back({{"loss", trainer.last_step.loss}, {"gradient norm", trainer.last_step.grad_norm}});
  }
  void log(Trainer&, MetricsRecord& record) override {
    for (const auto& [name, value] : record.values)
      if (name.starts_with("rewards/") || name.starts_with("logps/") || name == "kl" ||
          name.starts_with("distillation/"))
        steps_.back().emplace_back(name, value);
  }

 private:
  std::vector<NamedNumbers>& steps_;
};

struct TrainedRank {
  std::vector<NamedNumbers> steps;
  std::exception_ptr failure;
};

void train_rank(const Config& job, World* world, TrainedRank& result) {
  try {
    Logger log(LogLevel::error);
    LoadedConfig loaded;
    loaded.config = job;
    Trainer trainer(std::move(loaded), log, nullptr, world);
    use_exact_model(trainer, exact_model_of(job));
    if (world != nullptr) trainer.ranks_on_host = world->size();
    trainer.add_callback(std::make_unique<StepNumbers>(result.steps));
    trainer.build();
    trainer.run();
  } catch (const std::exception& failure) {
    result.failure = std::current_exception();
    if (world != nullptr) world->abort(failure.what());
  }
}

std::vector<TrainedRank> train(const Config& job, int ranks) {
  std::vector<TrainedRank> results(static_cast<size_t>(ranks));
  // Also a single rank, because training sets the number of threads of the thread that it runs on.
  const auto worlds = thread_worlds(ranks);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < results.size(); ++rank)
    threads.emplace_back(
        [&, rank] { train_rank(job, ranks == 1 ? nullptr : worlds[rank].get(), results[rank]); });
  for (std::thread& thread : threads) thread.join();
  for (const TrainedRank& rank : results)
    if (rank.failure) std::rethrow_exception(rank.failure);
  return results;
}

bool same_bits(double left, double right) {
  return std::bit_cast<uint64_t>(left) == std::bit_cast<uint64_t>(right);
}
bool same_bits(float left, float right) {
  return std::bit_cast<uint32_t>(left) == std::bit_cast<uint32_t>(right);
}

std::string step_difference(const std::vector<TrainedRank>& many, const TrainedRank& one) {
  const auto incomplete = [](const TrainedRank& rank) { return std::ssize(rank.steps) != kSteps; };
  if (incomplete(one) || std::ranges::any_of(many, incomplete))
    return format("a rank did not train {} steps", kSteps);
  for (size_t step = 0; step < one.steps.size(); ++step) {
    const NamedNumbers& expected = one.steps[step];
    for (size_t rank = 0; rank < many.size(); ++rank) {
      const NamedNumbers& found = many[rank].steps[step];
      if (found.size() != expected.size())
        return format("step {}: rank {} has {} numbers, one rank {}", step + 1, rank, found.size(),
                      expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        if (same_bits(found[i].second, expected[i].second)) continue;
        return format("step {}: the {} of rank {} is {}, that of one rank {}", step + 1, expected[i].first,
                      rank, found[i].second, expected[i].second);
      }
    }
  }
  return "";
}

std::vector<float> values_of(const TensorFolder& folder, const std::string& name) {
  const TensorSlice whole = whole_slice(folder.find(name)->shape);
  std::vector<float> values(static_cast<size_t>(whole.elements()));
  folder.read(name, whole, std::as_writable_bytes(std::span(values)));
  return values;
}

std::string tensor_difference(const TensorFolder& many, const TensorFolder& one) {
  for (const std::string& name : one.names()) {
    if (many.find(name) == nullptr) return format("{} is missing", name);
    const std::vector<float> expected = values_of(one, name);
    const std::vector<float> actual = values_of(many, name);
    if (actual.size() != expected.size())
      return format("{} has {} elements instead of {}", name, actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      if (same_bits(actual[i], expected[i])) continue;
      return format("{}: element {} of {} is {}, on one rank {}", name, i, expected.size(), actual[i],
                    expected[i]);
    }
  }
  return "";
}

/// Up to 9 micro-batches stay as they are; of more, an odd number stays odd.
int64_t small_micro_batches(int64_t micro_batches) {
  return micro_batches <= 9 ? micro_batches : 8 + micro_batches % 2;
}

/// Throws UsageError as training does. The vocabulary may be unknown yet; it changes no schedule.
Job planned_job(Config config, int world_size) {
  if (config.model.vocab_size == 0) config.model.vocab_size = kExactVocabulary;
  return plan_job(std::move(config), {0, world_size});
}

bool has_call(const ModelSpec& model, bool (*wanted)(const Call&)) {
  return std::ranges::any_of(
      model.blocks, [&](const BlockSpec& block) { return std::ranges::any_of(block.list.calls, wanted); });
}

/// What the adapters of the small job are beside too, besides the matrices of layers: what those of `model` are beside.
std::vector<std::string> small_targets(const ModelSpec& model) {
  std::vector<std::string> targets;
  const auto add = [&](const char* target, bool (*has_adapter)(const Call&)) {
    if (has_call(model, has_adapter)) targets.emplace_back(target);
  };
  add(R"(.*\.experts\.\d+\.(gate|up)_proj)", [](const Call& call) {
    return call.is(kTakeRows) || (call.is(kExpertIn) && call.weights.front().name.ends_with(".lora_A"));
  });
  add(R"(.*\.experts\.\d+\.down_proj)", [](const Call& call) { return call.is(kExpertRows); });
  add("embed_tokens",
      [](const Call& call) { return call.is(kLookup) && call.weights.front().name.ends_with(".lora_A"); });
  add("lm_head", [](const Call& call) { return call.is(kLoss) && call.weights.size() > 1; });
  return targets;
}

DataFormat small_format(const PreferenceConfig& preference) {
  if (!preference.enabled()) return DataFormat::synthetic;
  return preference.unpaired() ? DataFormat::unpaired_preference : DataFormat::preference;
}

/// Options of `job` that the small job does not have.
std::vector<std::string> options_left_out(const Job& job) {
  const Config& config = job.config;
  std::vector<std::string> left_out;
  const auto add = [&](bool differs, std::string_view key, std::string_view value) {
    if (differs) left_out.push_back(format("{} = \"{}\"", key, value));
  };
  add(config.adapter.takes_parts(), "adapter.init", choice_name(config.adapter.init));
  // The small job adapts q, k and v together.
  add(has_call(job.whole, [](const Call& call) { return call.is(kBias) && call.weights.size() > 1; }),
      "adapter.bias", choice_name(config.adapter.bias));
  add(storage_of(config.model.frozen_dtype).coded(), "model.frozen_dtype",
      choice_name(config.model.frozen_dtype));
  add(config.preference.unpaired() && config.preference.sft_weight > 0, "preference.sft_weight",
      format("{}", config.preference.sft_weight));
  add(!config.preference.reference.empty(), "preference.reference", config.preference.reference);
  add(config.distillation.temperature != 1, "distillation.temperature",
      format("{}", config.distillation.temperature));
  add(config.training.reduction != ReductionMode::fast, "training.reduction",
      choice_name(config.training.reduction));
  add(config.training.loss_reduction != LabelWeights::token, "training.loss_reduction",
      choice_name(config.training.loss_reduction));
  add(config.training.loss_aggregation != LossAggregation::token_mean, "training.loss_aggregation",
      choice_name(config.training.loss_aggregation));
  add(config.precision.compute != DType::f32, "precision.compute", dtype_name(config.precision.compute));
  add(config.precision.reduce != DType::f32, "precision.reduce", dtype_name(config.precision.reduce));
  return left_out;
}

}  // namespace

Config small_exact_job(const Config& config, int world_size) {
  const Job planned = planned_job(config, world_size);
  const Schedule& schedule = planned.pipeline.schedule;
  Config job;
  job.model.vocab_size = kExactVocabulary;
  job.model.n_experts = config.model.n_experts;
  job.model.n_mtp_layers = std::min<int64_t>(config.model.n_mtp_layers, 1);
  job.model.head = config.model.head;
  job.preference = config.preference;
  job.preference.reference.clear();
  job.distillation = config.distillation;
  job.distillation.top_k = std::min(job.distillation.top_k, kExactTargets);
  job.distillation.temperature = 1;
  job.model.tie_embeddings =
      config.model.ties() && config.model.n_experts == 0 && job.model.n_mtp_layers == 0;
  // A plug-in's family is not known to the small job.
  if (family_of(config.model).traits.biased_experts) job.model.family = "gpt_oss";
  if (config.adapter.enabled()) {
    job.adapter = exact_adapters(exact_model_of(job), small_targets(planned.whole));
    job.adapter.type = config.adapter.type;
    job.adapter.experts = config.adapter.experts;
    job.adapter.dropout = config.adapter.dropout > 0 ? 0.5 : 0;
    job.adapter.bias = config.adapter.bias;
  }
  job.model.dropout = config.model.dropout > 0 ? 0.5 : 0;
  job.parallelism = config.parallelism;
  ParallelDims dims = small_dims(planned.layout.dims);
  int64_t micro_batches = planned.batch.micro_batches();
  if (config.parallelism.pipeline_parallel_schedule_csv.empty())
    micro_batches = small_micro_batches(micro_batches);
  else
    dims.pp = planned.layout.dims.pp;
  const int64_t parts = micro_batches * dims.dp_replicate * dims.dp_shard;
  job = with_dims(job, dims);
  set_small_stages(job, dims.pp * std::max(1, schedule.stages()) / std::max(1, schedule.ranks()));
  keep_known_units(job.parallelism, job.model.tie_embeddings, job.model.n_layers);
  job.activation_checkpoint = config.activation_checkpoint;
  keep_known_parts(job.activation_checkpoint, exact_spec(exact_model_of(job), job));
  job.data.sources.emplace_back().format = small_format(job.preference);
  if (job.preference.enabled()) job.data.packing = Packing::best_fit;
  job.data.synthetic_tokens = 8192;
  job.tokenizer.type = TokenizerType::bytes;
  auto& training = job.training;
  training.seq_len = dims.tp == 3 ? 24 : dims.cp == 3 ? 18 : 16;
  training.global_batch_size = exact_rows(parts);
  training.local_batch_size = exact_rows(parts) / parts;
  job.parallelism.pipeline_parallel_microbatch_size = training.local_batch_size;
  training.steps = kSteps;
  training.threads = 1;
  training.device = config.training.device;
  job.optimizer.lr = 0.25;
  job.lr_scheduler.warmup_steps = 0;
  job.lr_scheduler.min_lr_factor = 1.0;
  job.checkpoint.async = false;
  job.checkpoint.resume = false;
  job.metrics.status_line = StatusLineMode::off;
  return job;
}

LayoutProof prove_layout(const Config& job, const std::filesystem::path& folder) {
  Config many = job;
  if (many.preference.enabled()) {
    const std::filesystem::path file = folder / "answers.jsonl";
    std::filesystem::create_directories(folder);
    many.preference.unpaired() ? write_exact_judged_answers(file) : write_exact_pairs(file);
    many.data.sources.at(0).path = file.string();
  }
  many.run_dir = (folder / "many").string();
  Config one = on_one_rank(many);
  one.run_dir = (folder / "one").string();
  many.data.cache_dir = one.data.cache_dir = (folder / "cache").string();
  const ParallelDims dims = dims_of(job);
  const auto ranks = static_cast<int>(dims.dp_replicate * dims.dp_shard * dims.cp * dims.tp * dims.pp);
  const std::vector<TrainedRank> expected = train(one, 1);
  const std::vector<TrainedRank> actual = train(many, ranks);
  const auto saved = [](const Config& config) {
    return checkpoint_tensors(
        checkpoint_of_step(std::filesystem::path(config.run_dir) / config.checkpoint.folder, kSteps));
  };
  LayoutProof proof;
  proof.difference = step_difference(actual, expected[0]);
  if (!proof.difference.empty()) return proof;
  proof.facts.push_back(format("{} steps on {} ranks ({}): losses and gradient norms are those of one rank",
                               kSteps, ranks, mesh_text(dims)));
  const TensorFolder tensors = saved(one);
  proof.difference = tensor_difference(saved(many), tensors);
  if (proof.difference.empty())
    proof.facts.push_back(
        format("{} tensors of weights and moments are those of one rank", tensors.names().size()));
  return proof;
}

LayoutProof prove_layout_of(const Config& config, int world_size) {
  const TemporaryFolder folder("prove");
  const int threads = at::get_num_threads();
  const Config job = small_exact_job(config, world_size);
  LayoutProof proof = prove_layout(job, folder.path());
  at::set_num_threads(threads);
  proof.left_out = options_left_out(planned_job(config, world_size));
  return proof;
}

}  // namespace stepforge
