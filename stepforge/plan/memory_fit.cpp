// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/memory_fit.h"

#include <array>
#include <cstdlib>
#include <new>
#include <optional>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/families.h"
#include "stepforge/plan/job_plan.h"

namespace stepforge {

namespace {

constexpr int kMaxSuggestedRanks = 1 << 16;

/// A changed configuration, and the settings that change it.
struct Candidate {
  Config config;
  int world_size = 1;
  std::vector<std::string> settings;
};

class FitSearch {
 public:
  FitSearch(const Config& config, const ModelSpec& model, RankId rank, const MemoryBudget& budget)
      : model_(model), rank_(rank), budget_(budget), start_{config, rank.world_size, {}} {}

  std::vector<FittingChange> find() {
    const std::array ladders = {&FitSearch::recompute, &FitSearch::shrink_batch, &FitSearch::offload,
                                &FitSearch::add_ranks};
    for (const Ladder ladder : ladders) keep_first(start_, ladder);
    if (!found_.empty()) return std::move(found_);
    // No single change is enough: take each ladder to its end, and continue with the next one.
    Candidate combined = start_;
    for (const Ladder ladder : ladders) {
      if (const Candidate* fitting = keep_first(combined, ladder); fitting != nullptr) break;
      if (const std::vector<Candidate> steps = (this->*ladder)(combined); !steps.empty())
        combined = steps.back();
    }
    return std::move(found_);
  }

 private:
  /// All changes of one kind, the smallest first.
  using Ladder = std::vector<Candidate> (FitSearch::*)(const Candidate&) const;

  std::vector<Candidate> recompute(const Candidate& from) const {
    std::vector<Candidate> steps;
    const RecomputeMode mode = from.config.activation_checkpoint.mode;
    if (mode == RecomputeMode::none) {
      Candidate some = from;
      some.config.activation_checkpoint.mode = RecomputeMode::every_n;
      some.config.activation_checkpoint.every_n = 2;
      some.settings.emplace_back("activation_checkpoint.mode=every_n activation_checkpoint.every_n=2");
      steps.push_back(std::move(some));
    }
    if (mode != RecomputeMode::full) {
      Candidate full = from;
      full.config.activation_checkpoint.mode = RecomputeMode::full;
      full.settings.emplace_back("activation_checkpoint.mode=full");
      steps.push_back(std::move(full));
    }
    return steps;
  }

  /// Keeps the rows of a step: more micro-batches of fewer rows.
  std::vector<Candidate> shrink_batch(const Candidate& from) const {
    std::vector<Candidate> steps;
    Candidate step = from;
    TrainingConfig& training = step.config.training;
    const bool follows_local = training.global_batch_size <= 0;
    for (int64_t rows = training.local_batch_size / 2; rows >= 1; rows /= 2) {
      if (from.config.training.local_batch_size % rows != 0) continue;
      if (follows_local)
        training.global_batch_size = from.config.training.local_batch_size * data_ranks(from);
      training.local_batch_size = rows;
      step.settings = from.settings;
      step.settings.push_back(format("training.local_batch_size={}", rows));
      if (follows_local)
        step.settings.push_back(format("training.global_batch_size={}", training.global_batch_size));
      steps.push_back(step);
    }
    return steps;
  }

  std::vector<Candidate> offload(const Candidate& from) const {
    if (budget_.with_host || from.config.parallelism.fsdp_cpu_offload) return {};
    Candidate step = from;
    step.config.parallelism.fsdp_cpu_offload = true;
    step.settings.emplace_back("parallelism.fsdp_cpu_offload=true");
    return {step};
  }

  std::vector<Candidate> add_ranks(const Candidate& from) const {
    std::vector<Candidate> steps;
    for (int factor = 2; from.world_size <= kMaxSuggestedRanks / factor; factor *= 2) {
      Candidate step = from;
      step.world_size = from.world_size * factor;
      step.settings.push_back(format("--world-size {}", step.world_size));
      steps.push_back(std::move(step));
    }
    return steps;
  }

  static int64_t data_ranks(const Candidate& candidate) {
    return plan_data_ranks(candidate.config, candidate.world_size);
  }

  /// nullopt if the settings are not valid together.
  std::optional<int64_t> bytes_of(const Candidate& candidate) const {
    const int rank = candidate.world_size == rank_.world_size ? rank_.rank : 0;
    try {
      const RankId id{rank, candidate.world_size};
      // A specification of one's own has no pipeline.
      const bool in_pipeline = has_stages(candidate.config);
      const PipelinePlan pipeline = in_pipeline ? plan_pipeline(candidate.config, id) : PipelinePlan();
      const ModelSpec& part = in_pipeline ? plan_rank_model(pipeline, id) : model_;
      const RankLayout layout = plan_layout(candidate.config, part, id, pipeline);
      return needed_bytes(account(write_train_step(candidate.config, part, layout, pipeline)), budget_);
    } catch (const UsageError&) {
      return std::nullopt;
    }
  }

  /// Records the first change of the ladder that fits; null if none does.
  const Candidate* keep_first(const Candidate& from, Ladder ladder) {
    for (const Candidate& candidate : (this->*ladder)(from)) {
      const std::optional<int64_t> bytes = bytes_of(candidate);
      if (!bytes || *bytes > budget_.bytes) continue;
      found_.push_back({join(candidate.settings, " "), *bytes});
      return &from;
    }
    return nullptr;
  }

  const ModelSpec& model_;
  RankId rank_;
  const MemoryBudget& budget_;
  Candidate start_;
  std::vector<FittingChange> found_;
};

}  // namespace

int64_t needed_bytes(const MemoryAccount& memory, const MemoryBudget& budget) {
  return budget.with_host ? memory.peak_of_one_memory() : memory.peak_bytes;
}

std::vector<FittingChange> find_fitting_changes(const Config& config, const ModelSpec& model, RankId rank,
                                                const MemoryBudget& budget) {
  return FitSearch(config, model, rank, budget).find();
}

std::string memory_verdict(const Config& config, const ModelSpec& model, RankId rank,
                           const MemoryAccount& memory, const MemoryBudget& budget) {
  const int64_t needed = needed_bytes(memory, budget);
  const bool fits = needed <= budget.bytes;
  std::string text = format("Memory: the step needs {} per rank, {} {}: it {}", human_bytes(needed),
                            human_bytes(budget.bytes), budget.source, fits ? "fits" : "does not fit");
  if (fits) return text;
  const std::vector<FittingChange> changes = find_fitting_changes(config, model, rank, budget);
  text += changes.empty()
              ? "\n  No recomputation, micro-batch or number of ranks makes it fit: use a smaller model,"
                " a shorter training.seq_len, or parallelism.context_parallel_degree on more ranks"
              : "\n  It would fit with";
  for (const FittingChange& change : changes)
    text += format("\n    {}  (needs {} per rank)", change.settings, human_bytes(change.bytes));
  return text;
}

namespace {

/// ": model.router_aux_loss_weight evens out the loads", of what the job can set.
std::string balancing_hint(const Config& config) {
  std::vector<std::string> settings;
  if (config.parallelism.context_parallel_degree == 1) settings.emplace_back("model.router_aux_loss_weight");
  if (family_of(config.model).traits.router == RouterKind::sigmoid_groups)
    settings.emplace_back("model.router_bias_update_speed");
  if (settings.empty()) return "";
  return format(": {} {} out the loads", join(settings, " and "), settings.size() == 1 ? "evens" : "even");
}

}  // namespace

std::string uneven_load_verdict(const Config& config, RankId rank, const MemoryAccount& even,
                                const MemoryAccount& largest, const MemoryBudget& budget) {
  const auto rows = [&](bool all) {
    ExpertParallel experts = plan_experts(config, rank);
    experts.all_rows = all;
    return static_cast<double>(
        experts.rows_per_token(config.model.n_experts, config.model.experts_per_token));
  };
  const double most = rows(true) / rows(false);
  const int64_t needed = needed_bytes(largest, budget);
  const std::string text = format(
      "Experts: memory and time are those of even loads (router/max_rank_load 1); a rank whose experts all "
      "tokens take "
      "(router/max_rank_load {:.3g}) needs {}: it ",
      most, human_bytes(needed));
  if (needed <= budget.bytes) return text + "fits";
  const auto spare = static_cast<double>(budget.bytes - needed_bytes(even, budget));
  if (spare < 0.0) return text + "does not fit";
  const double load = 1.0 + (most - 1.0) * spare / static_cast<double>(needed - needed_bytes(even, budget));
  return text + format("does not fit\n  Keep router/max_rank_load below about {:.3g}{}", load,
                       balancing_hint(config));
}

void with_predicted_peak(const MemoryAccount& memory, const MemoryBudget& budget,
                         const std::function<void()>& work) {
  const auto fail = [&](const std::string& reason) {
    throw Error(format(
        "{}; the training step alone was predicted to need {} per rank, and {} {} when the run started; "
        "`stepforge plan` shows what would fit",
        reason, human_bytes(needed_bytes(memory, budget)), human_bytes(budget.bytes), budget.source));
  };
  try {
    work();
  } catch (const OutOfMemory& failure) {
    fail(failure.what());
  } catch (const std::bad_alloc&) {
    fail("out of memory");
  }
}

int64_t parse_bytes(const std::string& text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr std::array units = {Unit{"", 1},
                                Unit{"B", 1},
                                Unit{"kB", 1e3},
                                Unit{"MB", 1e6},
                                Unit{"GB", 1e9},
                                Unit{"TB", 1e12},
                                Unit{"KiB", 1024},
                                Unit{"MiB", 1048576},
                                Unit{"GiB", 1073741824},
                                Unit{"TiB", 1099511627776}};
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string_view name = end;
  while (name.starts_with(' ')) name.remove_prefix(1);
  for (const Unit& unit : units) {
    const double bytes = number * unit.bytes;
    if (end != text.c_str() && name == unit.name && bytes >= 1 && bytes < 9e18)
      return static_cast<int64_t>(bytes);
  }
  throw UsageError(
      format("\"{}\" is not a memory size; expected a number and a unit, such as 80GiB or 512MB", text));
}

}  // namespace stepforge
