// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/packing.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <gtest/gtest.h>

#include "stepforge/base/json.h"
#include "stepforge/base/random.h"
#include "stepforge/data/peer_orders.h"
#include "tests/data/test_support.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

using Numbers = std::vector<int64_t>;

Json golden() {
  return read_json_file(source_dir() / "tests/golden/data/packing.json");
}

std::vector<Numbers> documents_by_row(const PackTable& table) {
  std::vector<Numbers> rows(static_cast<size_t>(table.rows()));
  for (int64_t row = 0; row < table.rows(); ++row)
    for (const Piece& piece : table.row(row)) rows[static_cast<size_t>(row)].push_back(piece.document);
  return rows;
}

std::vector<std::vector<Numbers>> pieces_by_row(const PackTable& table) {
  std::vector<std::vector<Numbers>> rows(static_cast<size_t>(table.rows()));
  for (int64_t row = 0; row < table.rows(); ++row)
    for (const Piece& piece : table.row(row))
      rows[static_cast<size_t>(row)].push_back({piece.document, piece.begin, piece.end});
  return rows;
}

TEST(PeerOrders, AreThoseOfTorchRandpermAndNumpyShuffle) {
  const Json orders = golden()["orders"];
  ASSERT_GE(orders.size(), 5U);
  for (const Json& order : orders) {
    const auto count = order["count"].get<int64_t>();
    const auto seed = order["seed"].get<uint32_t>();
    EXPECT_EQ(torch_randperm(count, seed), order["torch"].get<Numbers>()) << count;
    EXPECT_EQ(numpy_shuffle(count, seed), order["numpy"].get<Numbers>()) << count;
  }
}

TEST(PeerOrders, PythonShufflesLikeRandomShuffle) {
  const Json orders = golden()["python"];
  ASSERT_GE(orders.size(), 5U);
  for (const Json& order : orders) {
    Numbers numbers(order["count"].get<size_t>());
    std::iota(numbers.begin(), numbers.end(), int64_t{0});
    PythonRandom(order["seed"].get<uint64_t>()).shuffle(numbers);
    EXPECT_EQ(numbers, order["order"].get<Numbers>()) << order["seed"];
  }
}

TEST(Packing, BudgetRowsAreTheDynamicBatchesOfVeOmni) {
  const Json cases = golden()["budget"];
  ASSERT_GE(cases.size(), 5U);
  for (const Json& test : cases) {
    const PackTable table = pack_documents(test["lengths"].get<Numbers>(), test["capacity"].get<int64_t>(),
                                           Packing::budget, /*seed=*/1);
    EXPECT_EQ(documents_by_row(table), test["rows"].get<std::vector<Numbers>>()) << test["capacity"];
  }
}

TEST(Packing, SoftAndHardRowsAreThoseOfXTuner) {
  const Json cases = golden()["cases"];
  ASSERT_GE(cases.size(), 3U);
  for (const Json& test : cases) {
    const auto lengths = test["lengths"].get<Numbers>();
    const auto pack = [&](Packing packing) {
      return pack_documents(lengths, test["capacity"].get<int64_t>(), packing, test["seed"].get<uint64_t>());
    };
    EXPECT_EQ(documents_by_row(pack(Packing::soft)), test["soft"].get<std::vector<Numbers>>());
    EXPECT_EQ(pieces_by_row(pack(Packing::hard)), test["hard"].get<std::vector<std::vector<Numbers>>>());
  }
}

TEST(Packing, SoftPacksTenThousandDocumentsAtATime) {
  const Json large = golden()["large"];
  const PackTable table = pack_documents(large["lengths"].get<Numbers>(), large["capacity"].get<int64_t>(),
                                         Packing::soft, large["seed"].get<uint64_t>());
  Numbers counts;
  for (int64_t row = 0; row < table.rows(); ++row) counts.push_back(std::ssize(table.row(row)));
  EXPECT_EQ(counts, large["soft_documents"].get<Numbers>());
}

/// Whether the rows are not overfull and hold every token once but for `unused_tokens`: the ends of documents
/// that are longer than a row, or the last ones in their order if documents may be `divided`.
bool uses_every_token_once(const PackTable& table, const Numbers& lengths, int64_t capacity, bool divided) {
  Numbers used(lengths.size(), 0);  // from the beginning of each document
  int64_t total = 0;
  for (int64_t row = 0; row < table.rows(); ++row) {
    int64_t filled = 0;
    for (const Piece& piece : table.row(row)) {
      int64_t& end = used[static_cast<size_t>(piece.document)];
      if (piece.begin != end || piece.end <= piece.begin) return false;
      end = piece.end;
      filled += piece.end - piece.begin;
    }
    if (filled == 0 || filled > capacity || (divided && filled < capacity)) return false;
    total += filled;
  }
  for (size_t document = 0; document < lengths.size(); ++document) {
    if (!divided && used[document] != std::min(lengths[document], capacity)) return false;
  }
  const int64_t given = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  return total + table.unused_tokens == given && (!divided || table.unused_tokens < capacity);
}

/// `count` lengths from 0 to `longest`.
Numbers some_lengths(uint64_t seed, int64_t count, int64_t longest) {
  Numbers lengths;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t word = philox(seed, static_cast<uint64_t>(i))[0];
    lengths.push_back(static_cast<int64_t>(word % (static_cast<uint64_t>(longest) + 1)));
  }
  return lengths;
}

TEST(Packing, EveryTokenIsUsedOnceAndRowsDoNotOverflow) {
  const std::array packings = {Packing::hard, Packing::soft, Packing::best_fit, Packing::none,
                               Packing::budget};
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const auto words = philox(seed, uint64_t{1} << 40);
    const int64_t capacity = 1 + words[0] % 64;
    const Numbers lengths = some_lengths(seed, words[1] % 230, 1 + words[2] % 80);
    const Packing packing = packings[seed % packings.size()];
    const PackTable table = pack_documents(lengths, capacity, packing, seed);
    ASSERT_TRUE(uses_every_token_once(table, lengths, capacity, packing == Packing::hard))
        << "seed " << seed << ", packing " << static_cast<int>(packing);
  }
}

TEST(Packing, EveryTokenIsUsedOnceInSeveralChunks) {
  const Numbers lengths = some_lengths(7, 23000, 40);
  for (const Packing packing : {Packing::hard, Packing::soft, Packing::best_fit, Packing::budget}) {
    const PackTable table = pack_documents(lengths, 64, packing, 3);
    EXPECT_TRUE(uses_every_token_once(table, lengths, 64, packing == Packing::hard));
  }
}

TEST(Packing, BudgetKeepsTheOrderOfDocumentsWithinARow) {
  const PackTable table = pack_documents(some_lengths(1, 5000, 50), 128, Packing::budget, 0);
  for (int64_t row = 0; row < table.rows(); ++row) {
    const auto pieces = table.row(row);
    EXPECT_TRUE(std::is_sorted(pieces.begin(), pieces.end(),
                               [](const Piece& a, const Piece& b) { return a.document < b.document; }));
  }
}

int rows_half_empty(const PackTable& table, int64_t capacity) {
  int count = 0;
  for (int64_t row = 0; row < table.rows(); ++row) {
    int64_t filled = 0;
    for (const Piece& piece : table.row(row)) filled += piece.end;
    count += 2 * filled <= capacity ? 1 : 0;
  }
  return count;
}

TEST(Packing, BestFitLeavesAtMostOneRowHalfEmptyOfEachChunk) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const int64_t capacity = 1 + static_cast<int64_t>(seed % 64);
    const PackTable table = pack_documents(some_lengths(seed, static_cast<int64_t>(seed % 300), 70), capacity,
                                           Packing::best_fit, seed);
    ASSERT_LE(rows_half_empty(table, capacity), 1) << seed;
  }
  // 23,000 documents are three chunks.
  EXPECT_LE(rows_half_empty(pack_documents(some_lengths(2, 23000, 40), 64, Packing::best_fit, 1), 64), 3);
}

TEST(Packing, RefusesWhatIsNoPackingOfDocuments) {
  EXPECT_THROW(pack_documents(Numbers{1}, 8, Packing::concat, 0), Error);
  EXPECT_THROW(pack_documents(Numbers{1}, 8, Packing::preset, 0), Error);
}

TEST(Packing, HardRowsAreFullAndLeaveLessThanOneRow) {
  const PackTable table = pack_documents(Numbers{3, 9, 0, 5, 14}, 7, Packing::hard, 1);
  EXPECT_EQ(table.rows(), 4);
  EXPECT_EQ(table.unused_tokens, 3);
  for (int64_t row = 0; row < table.rows(); ++row) {
    int64_t filled = 0;
    for (const Piece& piece : table.row(row)) filled += piece.end - piece.begin;
    EXPECT_EQ(filled, 7);
  }
}

TEST(Packing, CountsWhatIsCutOff) {
  for (const Packing packing : {Packing::soft, Packing::best_fit, Packing::none, Packing::budget}) {
    const PackTable table = pack_documents(Numbers{4, 13, 9}, 8, packing, 0);
    EXPECT_EQ(table.cut_documents, 2);
    EXPECT_EQ(table.unused_tokens, 6);
  }
}

}  // namespace
}  // namespace stepforge::testing
