// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/memory_fit.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>
#include <optional>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/families.h"
#include "stepforge/plan/job_batch.h"
#include "stepforge/plan/job_mesh.h"
#include "stepforge/plan/step_plan.h"

namespace stepforge {

namespace {

constexpr int kMaxSuggestedRanks = 1 << 16;

/// A changed configuration, and the settings that change it.
struct Candidate {
  Config config;
  int world_size = 1;
  std::vector<std::string> settings;
};

constexpr int64_t kMaxTensorRanks = 8;  // of one host, usually
constexpr int64_t kMaxExpertRanks = 64;

/// Tries changes, alone and together, and keeps those that fit.
class FitSearch {
 public:
  FitSearch(const Job& job, const MemoryBudget& budget)
      : job_(job),
        rank_(job.layout.id),
        budget_(budget),
        start_{job.config, rank_.world_size, {}},
        has_own_model_(!is_model_of(job.config)) {}

  FitResult find() {
    for (const Ladder ladder : kAll) keep_first(ladder(*this, start_));
    const bool fits_here = std::ranges::any_of(found_, [](const Found& one) { return !one.more_ranks; });
    if (!fits_here) try_pairs();
    if (found_.empty()) try_all();
    std::ranges::stable_sort(found_, {}, &Found::more_ranks);
    FitResult result;
    for (Found& one : found_) result.changes.push_back(std::move(one.change));
    result.tried = tried();
    return result;
  }

 private:
  struct Found {
    FittingChange change;
    bool more_ranks = false;
  };
  using Candidates = std::vector<Candidate>;
  /// All changes of one kind, the smallest first.
  using Ladder = Candidates (*)(const FitSearch& search, const Candidate& from);

  static Candidates recompute(const FitSearch& search, const Candidate& from) {
    Candidates steps;
    const RecomputeMode mode = from.config.activation_checkpoint.mode;
    if (mode == RecomputeMode::none) {
      for (const double budget : {0.5, 0.25}) {
        Candidate some = from;
        some.config.activation_checkpoint.mode = RecomputeMode::budget;
        some.config.activation_checkpoint.memory_budget = budget;
        some.settings.push_back(
            format("activation_checkpoint.mode=budget activation_checkpoint.memory_budget={}", budget));
        steps.push_back(std::move(some));
      }
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
  static Candidates shrink_batch(const FitSearch& search, const Candidate& from) {
    Candidates steps;
    const int64_t all = from.config.training.local_batch_size;
    for (int64_t rows = all / 2; rows >= 1; rows /= 2) {
      if (all % rows != 0) continue;
      Candidate step = with_rows_of(from, from);
      step.config.training.local_batch_size = rows;
      step.settings.push_back(format("training.local_batch_size={}", rows));
      add_rows_setting(from, step);
      steps.push_back(std::move(step));
    }
    return steps;
  }

  static Candidates divide_matrices(const FitSearch& search, const Candidate& from) {
    Candidates steps;
    if (search.has_own_model_ || from.config.parallelism.tensor_parallel_degree > 1) return steps;
    for (int64_t degree = 2; degree <= std::min<int64_t>(kMaxTensorRanks, from.world_size); degree *= 2) {
      Candidate step = with_rows_of(from, from);
      step.config.parallelism.tensor_parallel_degree = degree;
      step.settings.push_back(format("parallelism.tensor_parallel_degree={}", degree));
      add_rows_setting(from, step);
      steps.push_back(std::move(step));
    }
    return steps;
  }

  static Candidates spread_experts(const FitSearch& search, const Candidate& from) {
    Candidates steps;
    const ModelConfig& model = from.config.model;
    if (search.has_own_model_ || family_of(model).expert_names == nullptr) return steps;
    const int64_t most = std::min({kMaxExpertRanks, int64_t{from.world_size}, model.n_experts});
    for (int64_t degree = 2 * from.config.parallelism.expert_parallel_degree; degree <= most; degree *= 2) {
      Candidate step = from;
      step.config.parallelism.expert_parallel_degree = degree;
      step.settings.push_back(format("parallelism.expert_parallel_degree={}", degree));
      steps.push_back(std::move(step));
    }
    return steps;
  }

  static Candidates offload(const FitSearch& search, const Candidate& from) {
    if (search.budget_.with_host || from.config.parallelism.fsdp_cpu_offload) return {};
    Candidate step = from;
    step.config.parallelism.fsdp_cpu_offload = true;
    step.settings.emplace_back("parallelism.fsdp_cpu_offload=true");
    return {step};
  }

  static Candidates add_ranks(const FitSearch& search, const Candidate& from) {
    Candidates steps;
    for (int factor = 2; from.world_size <= kMaxSuggestedRanks / factor; factor *= 2) {
      Candidate step = from;
      step.world_size = from.world_size * factor;
      step.settings.push_back(search.budget_.of_plan ? format("--world-size {}", step.world_size)
                                                     : format("on {} ranks", step.world_size));
      steps.push_back(std::move(step));
    }
    return steps;
  }

  static constexpr std::array kAll = {&FitSearch::recompute,       &FitSearch::shrink_batch,
                                      &FitSearch::divide_matrices, &FitSearch::spread_experts,
                                      &FitSearch::offload,         &FitSearch::add_ranks};
  static constexpr std::size_t kOnTheseRanks = kAll.size() - 1;

  static bool follows_local_batch(const Candidate& candidate) {
    return candidate.config.training.global_batch_size <= 0;
  }

  /// `candidate` with the rows of a step of `of` as training.global_batch_size.
  static Candidate with_rows_of(const Candidate& of, Candidate candidate) {
    if (follows_local_batch(of)) {
      candidate.config.training.global_batch_size =
          of.config.training.local_batch_size * plan_data_ranks(of.config, of.world_size);
    }
    return candidate;
  }

  static void add_rows_setting(const Candidate& from, Candidate& step) {
    if (!follows_local_batch(from)) return;
    step.settings.push_back(format("training.global_batch_size={}", step.config.training.global_batch_size));
  }

  /// Whether the specification was made from config.model, not by a program of its own.
  bool is_model_of(const Config& config) const {
    try {
      const ModelSpec planned = plan_divided_model(config, rank_);
      return has_stages(config) ||
             std::ranges::equal(planned.units, job_.part.units,
                                [](const UnitSpec& one, const UnitSpec& other) {
                                  return one.name == other.name && one.elements() == other.elements();
                                });
    } catch (const UsageError&) {
      return false;
    }
  }

  /// nullopt if the settings are not valid together.
  std::optional<int64_t> bytes_of(const Candidate& candidate) const {
    const int rank = candidate.world_size == rank_.world_size ? rank_.rank : 0;
    try {
      const RankId id{rank, candidate.world_size};
      const Job job = has_own_model_ ? plan_job(candidate.config, id, job_.whole, job_.model())
                                     : plan_job(candidate.config, id);
      return needed_bytes(account(write_train_step(job)), budget_);
    } catch (const UsageError&) {
      return std::nullopt;
    }
  }

  bool fits(const Candidate& candidate) {
    const std::optional<int64_t> bytes = bytes_of(candidate);
    if (!bytes) return false;
    for (const std::string& setting : candidate.settings) note_tried(setting);
    if (*bytes > budget_.bytes) return false;
    found_.push_back({{join(candidate.settings, " "), *bytes}, candidate.world_size != rank_.world_size});
    return true;
  }

  /// Keeps the first change that fits.
  bool keep_first(const Candidates& candidates) {
    return std::ranges::any_of(candidates, [&](const Candidate& candidate) { return fits(candidate); });
  }

  /// For each pair of kinds of change on these ranks: if their largest changes fit together, the smallest that do.
  void try_pairs() {
    for (std::size_t i = 0; i < kOnTheseRanks; ++i) {
      for (std::size_t j = i + 1; j < kOnTheseRanks; ++j) {
        const Candidates first = kAll.at(i)(*this, start_);
        if (first.empty()) continue;
        const Candidates most = kAll.at(j)(*this, first.back());
        const auto valid = last_valid(most);
        if (!valid || *bytes_of(*valid) > budget_.bytes) continue;
        for (const Candidate& one : first)
          if (keep_first(kAll.at(j)(*this, one))) break;
      }
    }
  }

  std::optional<Candidate> last_valid(const Candidates& candidates) {
    for (std::size_t k = candidates.size(); k-- > 0;) {
      if (!bytes_of(candidates[k])) continue;
      for (const std::string& setting : candidates[k].settings) note_tried(setting);
      return candidates[k];
    }
    return std::nullopt;
  }

  /// Each kind of change as far as it goes, one after the other, until the step fits.
  void try_all() {
    Candidate combined = start_;
    for (const Ladder ladder : kAll) {
      const Candidates steps = ladder(*this, combined);
      if (keep_first(steps)) return;
      if (auto most = last_valid(steps)) combined = std::move(*most);
    }
  }

  void note_tried(const std::string& setting) {
    std::string key = setting.substr(0, setting.find_last_of("= "));
    std::string value = setting.substr(setting.find_last_of("= ") + 1);
    if (key == "training.global_batch_size") return;
    if (key.starts_with("on ")) {  // "on 16 ranks"
      value = key.substr(3);
      key = "ranks";
    }
    auto found = std::ranges::find(tried_, key, [](const auto& entry) { return entry.first; });
    if (found == tried_.end()) found = tried_.insert(tried_.end(), {key, {}});
    if (std::ranges::count(found->second, value) == 0) found->second.push_back(value);
  }

  std::string tried() const {
    std::vector<std::string> parts;
    for (const auto& [key, values] : tried_) {
      const bool is_option = key.find('.') == std::string::npos;
      parts.push_back(values.size() == 1 ? format("{}{}{}", key, is_option ? " " : "=", values.front())
                                         : format("{}{}{} to {}", key, is_option ? " " : "=", values.front(),
                                                  values.back()));
    }
    return join(parts, ", ");
  }

  const Job& job_;
  RankId rank_;
  const MemoryBudget& budget_;
  Candidate start_;
  bool has_own_model_;
  std::vector<Found> found_;
  std::vector<std::pair<std::string, std::vector<std::string>>> tried_;  // values by setting
};

}  // namespace

MemoryBudget free_memory(const MemoryFacts& memory, int ranks_on_host, const std::string& source) {
  const int64_t share = memory.available / ranks_on_host;
  if (!memory.address_space || *memory.address_space >= share) return {share, source};
  return {*memory.address_space, "are left of this process's address space (ulimit -v)"};
}

int64_t needed_bytes(const MemoryAccount& memory, const MemoryBudget& budget) {
  return budget.with_host ? memory.peak_of_one_memory() : memory.peak_bytes;
}

FitResult find_fitting_changes(const Job& job, const MemoryBudget& budget) {
  return FitSearch(job, budget).find();
}

std::string memory_verdict(const Job& job, const MemoryAccount& memory, const MemoryBudget& budget) {
  const int64_t needed = needed_bytes(memory, budget);
  const bool fits = needed <= budget.bytes;
  std::string text = format("Memory: the step needs {} per rank, {} {}: it {}", human_bytes(needed),
                            human_bytes(budget.bytes), budget.source, fits ? "fits" : "does not fit");
  if (fits) return text;
  const FitResult result = find_fitting_changes(job, budget);
  if (result.changes.empty()) {
    text += result.tried.empty() ? "\n  No change was found that could be tried"
                                 : format("\n  Tried without success, alone and together: {}", result.tried);
    return text +
           "\n  Not tried: pipeline and context parallelism, other optimizers, a shorter training.seq_len, "
           "a smaller model";
  }
  text += "\n  It would fit with";
  for (const FittingChange& change : result.changes)
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

std::string uneven_load_verdict(const Job& job, const MemoryAccount& even, const MemoryAccount& largest,
                                const MemoryBudget& budget) {
  const auto rows = [&](bool all) {
    ExpertParallel experts = plan_experts(job.config, job.layout.id);
    experts.all_rows = all;
    const ModelConfig& model = job.config.model;
    return static_cast<double>(experts.rows_per_token(model.n_experts, model.experts_per_token));
  };
  const double most = rows(true) / rows(false);
  const int64_t needed = needed_bytes(largest, budget);
  const std::string text = format(
      "Experts: memory and time assume even loads (router/max_rank_load 1); "
      "a rank whose experts take all tokens (router/max_rank_load {:.3g}) needs {}: it ",
      most, human_bytes(needed));
  if (needed <= budget.bytes) return text + "fits";
  const auto spare = static_cast<double>(budget.bytes - needed_bytes(even, budget));
  if (spare < 0.0) return text + "does not fit";
  const double load = 1.0 + (most - 1.0) * spare / static_cast<double>(needed - needed_bytes(even, budget));
  return text + format("does not fit\n  Keep router/max_rank_load below about {:.3g}{}", load,
                       balancing_hint(job.config));
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
  constexpr std::array units = {Unit{"B", 1},         Unit{"kB", 1e3},         Unit{"MB", 1e6},
                                Unit{"GB", 1e9},      Unit{"TB", 1e12},        Unit{"KiB", 1024},
                                Unit{"MiB", 1048576}, Unit{"GiB", 1073741824}, Unit{"TiB", 1099511627776}};
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string_view name = end;
  while (name.starts_with(' ')) name.remove_prefix(1);
  for (const Unit& unit : units) {
    const double bytes = number * unit.bytes;
    if (end != text.c_str() && name == unit.name && bytes >= 1 && bytes < 9e18)
      return static_cast<int64_t>(bytes);
  }
  if (end != text.c_str() && name.empty() && number > 0)
    throw UsageError(format("\"{}\" has no unit; write {}GiB for gibibytes, or {}GB", text, text, text));
  throw UsageError(
      format("\"{}\" is not a memory size; expected a number and a unit, such as 80GiB or 512MB", text));
}

}  // namespace stepforge
