// SPDX-License-Identifier: Apache-2.0
// The order of the rows: in random trees of sources, a run that stops anywhere and continues on any number of ranks
// reads the very rows of an uninterrupted one, and a source repeats no row before all others.
#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "stepforge/data/concat_rows.h"
#include "stepforge/data/loader.h"
#include "stepforge/data/packed_rows.h"
#include "tests/data/numbered_source.h"
#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  /// A number in [low, high].
  int64_t number(int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(engine_); }
  bool one_in(int64_t count) { return number(1, count) == 1; }
  template <typename T>
  const T& element(const std::vector<T>& list) {
    return list.at(static_cast<size_t>(number(0, std::ssize(list) - 1)));
  }

 private:
  std::mt19937_64 engine_;
};

enum class Shares { weights, whole_epochs, any };

using Sources = std::vector<std::shared_ptr<const RowSource>>;

/// 1 to 5 sources, whose tokens tell them apart.
Sources numbered_sources(Random& random) {
  Sources sources;
  const int64_t count = random.number(1, 5);
  for (int32_t i = 0; i < count; ++i)
    sources.push_back(std::make_shared<NumberedSource>(random.number(1, 60), i * 1000));
  return sources;
}

/// A tree of the sources from `begin` on in random groups.
std::vector<SourceEntry> random_tree(Random& random, const Sources& sources, Shares shares, int depth = 0,
                                     bool concat = false) {
  std::vector<SourceEntry> entries;
  const bool by_epochs = shares == Shares::whole_epochs || (shares == Shares::any && random.one_in(2));
  for (auto next = sources.begin(); next != sources.end();) {
    const Sources part(next, next + random.number(1, sources.end() - next));
    next += std::ssize(part);
    SourceEntry entry;
    if (part.size() == 1 && (depth == 3 || !random.one_in(3))) {
      entry.name = part.front()->name();
      entry.source = part.front();
    } else if (depth == 3) {
      entry.concat = shares == Shares::whole_epochs;
      for (const auto& source : part) entry.entries.push_back({.name = "deep", .source = source});
    } else {
      entry.concat = shares != Shares::weights && random.one_in(2);
      entry.entries = random_tree(random, part, shares, depth + 1, entry.concat);
    }
    if (!concat && by_epochs) {
      entry.epochs = static_cast<double>(random.number(1, 3));
      if (shares == Shares::any && random.one_in(3)) entry.epochs = 0.5;  // rounds up to one row of one
    } else if (!concat) {
      entry.weight = static_cast<double>(random.number(1, 9));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

/// What a run is told: on any rank it makes the same stream of this.
struct Plan {
  std::vector<SourceEntry> entries;
  MixtureOptions options;
  int64_t rows_per_step = 1;
  bool fills_steps = false;

  std::shared_ptr<const RowStream> open() const {
    return RowStream::mixture(entries, options,
                              StepRows{.rows_per_step = rows_per_step, .fill_epochs = fills_steps});
  }
};

Plan random_plan(Random& random, const Sources& sources) {
  return {.entries = random_tree(random, sources, Shares::any),
          .options = {.seed = static_cast<uint64_t>(random.number(0, 1000)),
                      .shuffle = !random.one_in(4),
                      .weights_by = random.element(
                          std::vector<ShareOf>{ShareOf::rows, ShareOf::tokens, ShareOf::samples}),
                      .temperature = random.one_in(2) ? 2.0 : 0.0},
          .rows_per_step = random.element(std::vector<int64_t>{6, 8, 10, 12, 14}),
          .fills_steps = random.one_in(2)};
}

/// The loaders of all ranks of a job.
class World {
 public:
  World(const Plan& plan, const std::shared_ptr<const RowStream>& stream, Random& random, int64_t max_depth) {
    std::vector<int64_t> ranks;
    for (int64_t count = 1; count <= 8; ++count)
      if (plan.rows_per_step % count == 0) ranks.push_back(count);
    const int64_t count = random.element(ranks);
    const int64_t rows_of_rank = plan.rows_per_step / count;
    const int64_t local = random.one_in(2) || rows_of_rank % 2 != 0 ? rows_of_rank : rows_of_rank / 2;
    const int64_t depth = random.number(0, max_depth);
    for (int64_t rank = 0; rank < count; ++rank) {
      const BatchLayout layout{.rows_per_step = plan.rows_per_step,
                               .rows_per_micro_batch = local,
                               .data_ranks = count,
                               .data_rank = rank};
      if (depth == 0) {
        loaders_.push_back(std::make_unique<Loader>(stream, layout));
      } else {
        loaders_.push_back(std::make_unique<PrefetchLoader>(stream, layout, depth));
      }
    }
  }

  void restore(const LoaderState& state) {
    for (const auto& loader : loaders_) loader->restore(state, /*allow_changed=*/false);
  }
  int64_t micro_batches() const { return loaders_.front()->layout().micro_batches(); }
  /// The micro-batches of a step in the order of the ranks.
  std::vector<Batch> step() {
    std::vector<Batch> batches;
    for (const auto& loader : loaders_)
      for (int64_t i = 0; i < micro_batches(); ++i) batches.push_back(loader->next());
    return batches;
  }
  /// Begins a step that no rank ends.
  void begin_step(int64_t batches) {
    for (const auto& loader : loaders_)
      for (int64_t i = 0; i < batches; ++i) loader->next();
  }
  LoaderState state() const {
    const LoaderState first = loaders_.front()->state();
    for (const auto& loader : loaders_) EXPECT_EQ(loader->state(), first) << "on all ranks";
    return first;
  }

 private:
  std::vector<std::unique_ptr<Loader>> loaders_;
};

/// The rows of some steps, read one by one.
struct Reference {
  Reference(const Plan& plan, int64_t first_step, int64_t steps) : first(first_step * plan.rows_per_step) {
    const auto stream = plan.open();
    for (int64_t row = first; row < (first_step + steps) * plan.rows_per_step; ++row)
      rows.push_back(stream->rows(row, 1));
  }

  /// Whether the batches together are the rows from number `row` on.
  bool matches(int64_t row, const std::vector<Batch>& batches) const {
    for (const Batch& batch : batches) {
      for (int64_t i = 0; i < batch.rows; ++i, ++row) {
        const Batch& one = rows.at(static_cast<size_t>(row - first));
        const auto same_part = [&](const auto& part, const auto& whole) {
          return std::equal(part.begin(), part.end(), whole.begin() + i * std::ssize(part));
        };
        if (!same_part(one.row_ids, batch.row_ids) || !same_part(one.sources, batch.sources) ||
            !same_part(one.tokens, batch.tokens) || !same_part(one.labels, batch.labels) ||
            !same_part(one.positions, batch.positions))
          return false;
      }
    }
    return true;
  }

  int64_t first;
  std::vector<Batch> rows;
};

/// Runs of the plan that stop somewhere in these steps and continue in another world.
void check_cuts(const Plan& plan, int64_t first_step, int64_t steps, int64_t cuts, Random& random,
                int64_t max_depth) {
  const Reference reference(plan, first_step, steps);
  const auto stream = plan.open();
  for (int64_t i = 0; i < cuts; ++i) {
    const int64_t begin = first_step + random.number(0, steps - 2);
    const LoaderState start{.rows_consumed = begin * plan.rows_per_step,
                            .fingerprint = stream->fingerprint()};
    World before(plan, stream, random, max_depth);
    before.restore(start);
    const bool ends_a_step = random.one_in(3);
    if (ends_a_step) {
      ASSERT_TRUE(reference.matches(start.rows_consumed, before.step()));
    }
    before.begin_step(random.number(0, before.micro_batches() - 1));
    const LoaderState state = before.state();
    ASSERT_EQ(state.rows_consumed, start.rows_consumed + (ends_a_step ? plan.rows_per_step : 0));
    World after(plan, stream, random, max_depth);
    after.restore(state);
    ASSERT_TRUE(reference.matches(state.rows_consumed, after.step())) << "cut " << i << " at step " << begin;
    ASSERT_EQ(after.state().rows_consumed, state.rows_consumed + plan.rows_per_step);
  }
}

TEST(RowOrderOfTrees, ARunThatStopsAnywhereContinuesOnAnyNumberOfRanks) {
  constexpr uint64_t kTrees = 200;
  constexpr int64_t kCuts = 50;
  for (uint64_t tree = 0; tree < kTrees; ++tree) {
    SCOPED_TRACE(format("tree {}", tree));
    Random random(tree);
    const Plan plan = random_plan(random, numbered_sources(random));
    const int64_t steps_in_block = Mixture::kBlockRows / plan.rows_per_step;
    const int64_t first_step = random.number(0, 3) * steps_in_block + random.number(0, steps_in_block / 2);
    check_cuts(plan, first_step, 20, kCuts, random, /*max_depth=*/0);
    if (HasFatalFailure()) return;
  }
}

TEST(RowOrderOfTrees, ARunContinuesAcrossTheEndOfABlock) {
  for (uint64_t tree = 0; tree < 20; ++tree) {
    Random random(tree);
    const Plan plan = random_plan(random, numbered_sources(random));
    check_cuts(plan, Mixture::kBlockRows / plan.rows_per_step - 2, 4, 20, random, /*max_depth=*/0);
    if (HasFatalFailure()) return;
  }
}

TEST(RowOrderOfTrees, ARunOfPackedRowsContinuesWithAnyPrefetching) {
  const TempFolder folder;
  Random random(1);
  std::vector<std::shared_ptr<const IndexedDataset>> datasets;
  for (int i = 0; i < 5; ++i) {
    std::vector<int64_t> lengths;
    for (int64_t left = random.number(5, 40); left > 0; --left) lengths.push_back(random.number(1, 30));
    datasets.push_back(write_dataset(folder / format("set{}", i), counting_documents(lengths)));
  }
  constexpr int64_t kSeqLen = 16;
  const auto rows_of = [&](const auto& dataset, int64_t packing) -> std::shared_ptr<const RowSource> {
    if (packing == static_cast<int64_t>(Packing::concat))
      return std::make_shared<ConcatRows>(dataset, kSeqLen, 65536, std::nullopt);
    return std::make_shared<PackedRows>(dataset, kSeqLen, 65536, static_cast<Packing>(packing), /*seed=*/3,
                                        std::nullopt);
  };
  for (uint64_t tree = 0; tree < 24; ++tree) {
    SCOPED_TRACE(format("tree {}", tree));
    Sources sources;
    const int64_t count = random.number(1, 5);
    for (int64_t i = 0; i < count; ++i)
      sources.push_back(
          rows_of(random.element(datasets), random.number(0, static_cast<int64_t>(Packing::none))));
    const Plan plan = random_plan(random, sources);
    check_cuts(plan, random.number(0, 100), 8, 10, random, /*max_depth=*/8);
    if (HasFatalFailure()) return;
  }
}

TEST(RowOrderOfTrees, EveryEpochOfASourceOfWeightedGroupsHasEachRowOnce) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    const Sources sources = numbered_sources(random);
    const SourceTree tree(random_tree(random, sources, Shares::weights), "data.sources", {.seed = seed});
    std::vector<std::vector<int64_t>> epochs(sources.size());  // the rows of each source in its current epoch
    for (int64_t row = 0; row < 2000; ++row) {
      const RowRef found = tree.locate(row);
      const auto source = static_cast<size_t>(found.source);
      std::vector<int64_t>& epoch = epochs[source];
      ASSERT_EQ(std::ranges::count(epoch, found.running), 0) << "source " << source << " of tree " << seed;
      epoch.push_back(found.running);
      if (std::ssize(epoch) == sources[source]->rows()) epoch.clear();
    }
  }
}

TEST(RowOrderOfTrees, EveryEpochOfATreeOfEpochsHasEachRowOfASourceEquallyOften) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    const Sources sources = numbered_sources(random);
    const SourceTree tree(random_tree(random, sources, Shares::whole_epochs), "data.sources", {.seed = seed});
    const int64_t rows = tree.rows_per_epoch();
    for (const int64_t epoch : {0, 1, 7}) {
      std::map<std::pair<int64_t, int64_t>, int64_t> times;
      for (int64_t row = epoch * rows; row < (epoch + 1) * rows; ++row) {
        const RowRef found = tree.locate(row);
        ++times[{found.source, found.running}];
      }
      for (size_t i = 0; i < sources.size(); ++i) {
        const auto expected = static_cast<int64_t>(tree.leaves()[i].rows) / sources[i]->rows();
        for (int64_t row = 0; row < sources[i]->rows(); ++row)
          ASSERT_EQ(times[std::pair(static_cast<int64_t>(i), row)], expected) << "tree " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
