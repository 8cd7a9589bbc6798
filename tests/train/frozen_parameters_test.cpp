// SPDX-License-Identifier: Apache-2.0
// Runs in which some parameters of a unit are trained and others frozen.
#include <map>

#include <ATen/ops/equal.h>

#include "stepforge/checkpoint/native.h"
#include "stepforge/modelspec/flat_layout.h"
#include "tests/catalog/all_families.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

using Tensors = std::map<std::string, at::Tensor>;  ///< by parameter

/// What `shard` returns of each unit, joined over its ranks. A collective.
Tensors by_parameter(const ModelStore& store, const std::function<at::Tensor(const UnitStore&)>& shard) {
  Tensors found;
  for (size_t u = 0; u < store.size(); ++u) {
    const UnitStore& unit = store.unit(u);
    if (!shard(unit).defined()) continue;
    const at::Tensor whole = unit.whole(shard(unit));
    const FlatLayout layout = flat_layout(unit.spec());
    for (size_t i = 0; i < layout.offsets.size(); ++i) {
      const ParameterSpec& parameter = unit.spec().parameters[i];
      found[parameter.name] = whole.narrow(0, layout.offsets[i], parameter.elements()).clone();
    }
  }
  return found;
}

Tensors weights_of(const ModelStore& store) {
  return by_parameter(store, [](const UnitStore& unit) { return unit.master(); });
}

/// What one rank sees of a run of two steps.
struct Observed {
  Tensors gradients;  ///< of the first step
  Tensors before;
  Tensors after;
  double norm = 0.0;  ///< of the first step
};

std::vector<Observed> observe(int ranks, const Strings& args) {
  std::vector<Observed> seen(static_cast<size_t>(ranks));
  RankThreads threads(ranks);
  threads.run([&](int) { return args + Strings{"training.steps=2", "checkpoint.enable=false"}; },
              [&](TestRun& run, int rank) {
                Observed& own = seen.at(static_cast<size_t>(rank));
                run.trainer().add_callback(std::make_unique<CallAtStart>(
                    [&own](Trainer& trainer) { own.before = weights_of(*trainer.store); }));
                run.trainer().add_callback(std::make_unique<CallAt>([&own](Trainer& trainer) {
                  own.after = weights_of(*trainer.store);
                  if (!own.gradients.empty()) return;
                  own.norm = trainer.last_step.grad_norm;
                  own.gradients =
                      by_parameter(*trainer.store, [](const UnitStore& unit) { return unit.gradient(); });
                }));
              });
  for (const std::string& failure : threads.failures) EXPECT_EQ(failure, "");
  return seen;
}

std::string freezing(const Strings& names) {
  return "model.freeze=" + join(names, ",");
}

/// Every second parameter of the model, of which each rank may have some, from number `first` on.
Strings every_second(const std::vector<Observed>& ranks, size_t first) {
  Tensors all;
  for (const Observed& rank : ranks) all.insert(rank.gradients.begin(), rank.gradients.end());
  Strings names;
  size_t number = 0;
  for (const auto& [name, gradient] : all)
    if (number++ % 2 == first) names.push_back(name);
  return names;
}

/// The trained parameters have the gradients that they have if all are trained, and the frozen ones have none and do not
/// change.
void expect_frozen(const Observed& partly, const Observed& all, const Strings& frozen,
                   const std::string& context) {
  EXPECT_FALSE(all.gradients.empty()) << context;
  EXPECT_LT(partly.norm, all.norm) << context;
  for (const auto& [name, gradient] : all.gradients) {
    const bool is_frozen = std::ranges::count(frozen, name) > 0;
    EXPECT_EQ(is_frozen, at::equal(partly.before.at(name), partly.after.at(name))) << context << name;
    ASSERT_EQ(is_frozen, !partly.gradients.contains(name)) << context << name;
    if (is_frozen) continue;
    EXPECT_TRUE(at::equal(partly.gradients.at(name), gradient)) << context << name;
  }
}

/// What all ranks see. In a pipeline each has some blocks, and which ones depends on what is frozen.
Observed joined(const std::vector<Observed>& ranks) {
  Observed all = ranks.front();
  for (const Observed& rank : ranks) {
    all.gradients.insert(rank.gradients.begin(), rank.gradients.end());
    all.before.insert(rank.before.begin(), rank.before.end());
    all.after.insert(rank.after.begin(), rank.after.end());
    EXPECT_EQ(rank.norm, all.norm);
  }
  return all;
}

/// Freezes half of the parameters, and then the others.
void expect_halves_frozen(int ranks, const Strings& args, const std::string& context) {
  const std::vector<Observed> all = observe(ranks, args);
  for (const size_t first : {0U, 1U}) {
    const Strings frozen = every_second(all, first);
    const std::vector<Observed> partly = observe(ranks, args + Strings{freezing(frozen)});
    expect_frozen(joined(partly), joined(all), frozen, format("{}, half {}, ", context, first));
  }
}

TEST(FrozenParameters, LeaveTheGradientsOfTheOthersInEveryFamily) {
  for (const std::string& family : family_names()) {
    const TempFolder folder;
    expect_halves_frozen(1, trainer_run(folder / "run") + setting_overrides(family), family);
  }
}

struct RanksOfLayout {
  std::string name;
  int ranks = 2;
  Strings more;
};

void PrintTo(const RanksOfLayout& layout, std::ostream* out) {
  *out << layout.name;
}

class FrozenParametersOf : public ::testing::TestWithParam<RanksOfLayout> {};

TEST_P(FrozenParametersOf, LeaveTheGradientsOfTheOthers) {
  const TempFolder folder;
  expect_halves_frozen(GetParam().ranks,
                       trainer_run(folder / "run") +
                           Strings{"training.local_batch_size=1", "training.global_batch_size=4"} +
                           GetParam().more,
                       GetParam().name);
}

const std::string kInOrder = "training.reduction=ordered";
const Strings kSpreadExperts{"model.n_experts=4", "model.experts_per_token=2", "model.n_kv_heads=2",
                             "parallelism.expert_parallel_degree=2"};
const Strings kQwenExperts = kSpreadExperts + Strings{"model.family=qwen3_moe", "model.moe_ffn_dim=16"};

std::vector<RanksOfLayout> layouts() {
  const Strings shared = kQwenExperts + Strings{"model.family=qwen2_moe", "model.shared_expert_dim=24"};
  const std::string tensor = "parallelism.tensor_parallel_degree=2";
  const std::string pipeline = "parallelism.pipeline_parallel_degree=2";
  const std::string tied = "model.tie_embeddings=true";
  const Strings in_a_v{pipeline, "model.n_layers=4", "parallelism.pipeline_parallel_schedule=ZBVZeroBubble"};
  return {{"fsdp", 2, {}},
          {"fsdp_of_four", 4, {kInOrder}},
          {"fsdp_by_rows", 2, {"parallelism.fsdp_partition=by_dim"}},
          {"hsdp", 4, {"parallelism.data_parallel_replicate_degree=2", kInOrder}},
          {"recomputed", 1, {"activation_checkpoint.mode=full"}},
          {"tied", 1, {tied}},
          {"offloaded", 2, {"parallelism.fsdp_cpu_offload=true"}},
          {"muon", 2, {"optimizer.name=muon", "parallelism.fsdp_partition=by_tensor"}},
          {"tensor", 2, {tensor, "model.n_kv_heads=2", "model.family=qwen3"}},
          {"context", 2, {"parallelism.context_parallel_degree=2"}},
          {"pipeline", 2, {pipeline}},
          {"pipeline_tied", 2, {pipeline, tied}},
          {"pipeline_in_a_v", 2, in_a_v},
          {"experts", 2, kQwenExperts},
          {"experts_with_biases", 2, kSpreadExperts + Strings{"model.family=gpt_oss"}},
          {"experts_in_a_v", 4, kQwenExperts + in_a_v},
          {"shared_experts", 2, shared},
          {"shared_experts_of_slices", 2, shared + Strings{tensor}},
          {"later_tokens", 2, setting_overrides("deepseek_v3") + Strings{"model.n_mtp_layers=1"}}};
}

INSTANTIATE_TEST_SUITE_P(Layouts, FrozenParametersOf, ::testing::ValuesIn(layouts()),
                         [](const auto& info) { return info.param.name; });

/// The norms, and a matrix of each layer.
const Strings kSomeFrozen{"model.freeze=.*norm.*,layers.0.attention.qkv,layers.1.mlp.down"};

TEST(FrozenParameters, ARunMovesOverRanksWithTheBitsOfOneRank) {
  const TempFolder folder;
  const Strings ordered = kSomeFrozen + Strings{kInOrder, "training.steps=6"};
  const Records whole = TestRun(job(folder, "whole", ordered)).run();
  for (const int ranks : {2, 4}) {
    const std::string name = format("on_{}", ranks);
    expect_same_numbers(RankThreads(ranks).run(job(folder, name, ordered)), whole, name);
  }
  const Strings moving =
      job(folder, "moving", ordered + Strings{"checkpoint.enable=true", "checkpoint.interval=100"});
  Records all = RankThreads(4).run(moving, 2)[3];
  for (const StepRecord& record : TestRun(moving).run(4)) all.push_back(record);
  const std::vector<Records> rest = RankThreads(2).run(moving);
  all.insert(all.end(), rest[1].begin(), rest[1].end());
  EXPECT_EQ(numbers(all), numbers(whole));
}

/// Router and norms are in one unit with attention, and the experts, which are spread, in another.
TEST(FrozenParameters, MayBeTheRoutersOfSpreadExperts) {
  const TempFolder folder;
  const Strings args = trainer_run(folder / "run") + kQwenExperts;
  const std::vector<Observed> all = observe(2, args);
  const std::vector<Observed> partly = observe(2, args + Strings{"model.freeze=.*mlp.gate.weight"});
  for (size_t rank = 0; rank < 2; ++rank)
    expect_frozen(partly[rank], all[rank], {"layers.0.mlp.router", "layers.1.mlp.router"}, "routers ");
}

/// The bytes of the persistent buffers of a kind.
int64_t planned(const Trainer& trainer, BufferKind kind) {
  int64_t bytes = 0;
  for (const Buffer& buffer : trainer.train_program.buffers)
    if (buffer.kind == kind) bytes += buffer.bytes;
  return bytes;
}

TEST(FrozenParameters, HaveNoGradientAndNoOptimizerStateInThePlan) {
  const TempFolder folder;
  TestRun run(trainer_run(folder / "run") + kSomeFrozen);
  const Trainer& trainer = run.build();
  int64_t trained = 0;
  for (size_t unit = 0; unit < trainer.store->size(); ++unit) {
    const UnitStore& storage = trainer.store->unit(unit);
    EXPECT_EQ(storage.trained(), !storage.spec().name.ends_with(".frozen")) << storage.spec().name;
    EXPECT_EQ(storage.trained(), !trainer.optimizer->state(unit).slots().empty()) << storage.spec().name;
    if (storage.trained()) trained += storage.shard_size() * 4;
  }
  EXPECT_EQ(planned(trainer, BufferKind::gradients), trained);
  EXPECT_EQ(planned(trainer, BufferKind::optimizer), 2 * trained);
}

}  // namespace
}  // namespace stepforge::testing
