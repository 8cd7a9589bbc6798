// SPDX-License-Identifier: Apache-2.0
// Runs with frozen units.
#include "tests/train/fixture.h"

namespace stepforge::testing {
namespace {

/// The units whose weights a run with `more` changes.
Strings changed_units(const Strings& more) {
  const TempFolder folder;
  TestRun run(trainer_run(folder / "run") + Strings{"training.steps=3"} + more);
  Trainer& trainer = run.build();
  std::vector<at::Tensor> before;
  for (size_t unit = 0; unit < trainer.store->size(); ++unit)
    before.push_back(trainer.store->unit(unit).master().clone());
  trainer.run();
  Strings changed;
  for (size_t unit = 0; unit < trainer.store->size(); ++unit) {
    if (!at::equal(trainer.store->unit(unit).master(), before[unit]))
      changed.push_back(trainer.store->unit(unit).spec().name);
  }
  return changed;
}

TEST(Freeze, ChangesOnlyTheOtherUnits) {
  EXPECT_EQ(changed_units({}), (Strings{"embedding", "layers.0", "layers.1", "head"}));
  EXPECT_EQ(changed_units({"model.freeze=embedding,layers.0"}), (Strings{"layers.1", "head"}));
  EXPECT_EQ(changed_units({"model.freeze=head,layers.1"}), (Strings{"embedding", "layers.0"}));
}

TEST(Freeze, OfTheEmbeddingFreezesATiedHead) {
  EXPECT_EQ(changed_units({"model.freeze=embedding", "model.tie_embeddings=true"}),
            (Strings{"layers.0", "layers.1", "head"}))
      << "the head still trains its norm";
}

TEST(Freeze, AResumedRunHasTheBitsOfAWholeOne) {
  const TempFolder folder;
  const auto args = [&](const std::string& name) {
    return trainer_run(folder / name) +
           Strings{"training.steps=4", "model.freeze=layers.0", "checkpoint.interval=2"};
  };
  const auto whole = TestRun(args("whole")).run();
  TestRun(args("parts")).run(2);
  const auto rest = TestRun(args("parts")).run();
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_EQ(rest.back(), whole.back());
}

}  // namespace
}  // namespace stepforge::testing
