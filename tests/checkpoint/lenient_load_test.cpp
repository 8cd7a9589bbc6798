// SPDX-License-Identifier: Apache-2.0
// Loading a model that differs from the one in the files, where that is accepted.
#include <ATen/ops/equal.h>

#include "stepforge/base/error.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/storage/tensor_parts.h"
#include "tests/checkpoint/layouts.h"

namespace stepforge::testing {
namespace {

/// A layer more, a larger vocabulary and a wider MLP than odd_config(): matrices with more rows, with more columns, and
/// missing ones.
ModelConfig larger_config() {
  ModelConfig config = odd_config();
  config.n_layers += 1;
  config.vocab_size += 5;
  config.ffn_dim += 2;
  return config;
}

at::Tensor values_of(const SmallModel& whole, const std::string& name) {
  for (const NamedTensor& tensor : named_tensors(whole.store)) {
    if (tensor.name != name) continue;
    return whole.store.unit(tensor.unit).master_view(tensor.parameter).narrow(0, tensor.row, tensor.shape[0]);
  }
  return {};
}

/// What a lenient load of `stored` makes of a model that began as `initial`.
at::Tensor expected_values(const SmallModel& stored, const SmallModel& initial, const std::string& name) {
  at::Tensor values = values_of(initial, name).clone();
  const at::Tensor there = values_of(stored, name);
  if (!there.defined() || there.sizes().slice(1) != values.sizes().slice(1)) return values;
  const int64_t rows = std::min(there.size(0), values.size(0));
  values.narrow(0, 0, rows).copy_(there.narrow(0, 0, rows));
  return values;
}

void expect_what_fits(const SmallModel& stored, const SmallModel& initial, const SmallModel& loaded) {
  for (const NamedTensor& tensor : named_tensors(loaded.store))
    EXPECT_TRUE(at::equal(values_of(loaded, tensor.name), expected_values(stored, initial, tensor.name)))
        << tensor.name;
}

struct StoredModel {
  explicit StoredModel(const ModelConfig& config) : model(1, config) {
    write_checkpoint(folder.path(), 1, model.stage());
    found = verify_checkpoint(folder / "step-1");
    export_hf(folder / "hf", model.config, model.spec, checkpoint_tensors(found), nullptr);
  }

  TempFolder folder;
  SmallModel model;
  FoundCheckpoint found;
};

TEST(LenientLoad, TakesWhatFitsKeepsTheRestAndReportsBoth) {
  for (const auto& [from, into] :
       {std::pair{odd_config(), larger_config()}, std::pair{larger_config(), odd_config()}}) {
    const StoredModel stored(from);
    const SmallModel initial(2, into);
    SmallModel native(2, into);
    SmallModel imported(2, into);
    TensorDifferences of_native;
    TensorDifferences of_folder;
    load_checkpoint(stored.found, native.spec, native.store, nullptr, &of_native);
    import_weights(open_hf_weights(stored.folder / "hf"), imported.spec, imported.store,
                   {.accepted = &of_folder});
    expect_what_fits(stored.model, initial, native);
    expect_what_fits(stored.model, initial, imported);
    const bool grows = into.n_layers > from.n_layers;
    for (const TensorDifferences& found : {of_native, of_folder}) {
      EXPECT_EQ(found.missing.empty(), !grows);
      EXPECT_EQ(found.unexpected.empty(), grows);
      EXPECT_EQ(found.different.size(), 2U);   // down_proj of two layers
      EXPECT_EQ(found.other_rows.size(), 6U);  // gate and up of two layers, embedding and head
      EXPECT_GT(found.equal, 4);
    }
    EXPECT_CONTAINS(join(of_native.other_rows, "\n"), "model.embed_tokens.weight is [");
  }
}

TEST(LenientLoad, DoesTheSameInEveryLayoutWithMoments) {
  const StoredModel stored(odd_config());
  const TempFolder folder;
  SmallModel expected(2, larger_config());
  TensorDifferences differences;
  load_checkpoint(stored.found, expected.spec, expected.store, &expected.optimizer, &differences);
  EXPECT_EQ(expected.optimizer.steps(), stored.model.optimizer.steps());
  write_checkpoint(folder.path(), 2, expected.stage());
  const std::vector<Layout> layouts = {{3, 1},
                                       {4, 2},
                                       {3, 1, {PartitionKind::by_dim, 1}},
                                       {2, 1, {PartitionKind::by_tensor}},
                                       {2, 1, {}, {0, 1}},
                                       {4, 1, {}, {0, 1, 1, 0}},
                                       {4, 1, {}, {}, false, 2}};
  for (const Layout& layout : layouts) {
    run_threads(layout.ranks, [&](World& world) -> std::string {
      SmallModel model(2, larger_config(), rank_groups(world, layout.dims()), layout.partition,
                       layout.rank_of_stage);
      TensorDifferences own;
      load_checkpoint(stored.found, model.spec, model.store, &model.optimizer, &own);
      EXPECT_EQ(own.missing, differences.missing) << layout.name();
      const std::string loaded = model.bits();
      model.refill(3);
      load_checkpoint(folder / "step-2", model.spec, model.store, &model.optimizer);
      EXPECT_TRUE(loaded == model.bits()) << layout.name();
      return "";
    });
  }
}

TEST(LenientLoad, OfAModelWithNothingInCommonIsRefused) {
  const StoredModel stored(odd_config());
  ModelConfig other = small_config("llama");
  other.head_dim = 8;
  SmallModel model(2, other);
  const std::string before = model.bits();
  TensorDifferences differences;
  EXPECT_CONTAINS(message_of<Error>(
                      [&] { load_checkpoint(stored.found, model.spec, model.store, nullptr, &differences); }),
                  "is a checkpoint of another model", "different shape: model.norm.weight");
  EXPECT_TRUE(model.bits() == before);
}

TEST(LenientLoad, OfAnotherOptimizerIsRefused) {
  const StoredModel stored(odd_config());
  SmallModel model(2, odd_config());
  OptimizerConfig lion;
  lion.name = "lion";
  Optimizer other(model.store, resolve_param_groups(lion, model.spec, model.part.units));
  TensorDifferences differences;
  EXPECT_CONTAINS(message_of<Error>(
                      [&] { load_checkpoint(stored.found, model.spec, model.store, &other, &differences); }),
                  "is of another optimizer");
}

}  // namespace
}  // namespace stepforge::testing
