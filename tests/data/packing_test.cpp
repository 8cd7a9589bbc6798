// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/packing.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "stepforge/base/json.h"
#include "stepforge/base/json_reader.h"
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

TEST(Packing, EveryDocumentIsUsedOnceAndRowsDoNotOverflow) {
  const bool holds = rc::check("packing", [] {
    const auto lengths = *rc::gen::container<Numbers>(rc::gen::inRange<int64_t>(0, 40));
    const auto capacity = *rc::gen::inRange<int64_t>(1, 64);
    const auto packing = *rc::gen::element(Packing::soft, Packing::best_fit, Packing::none);
    const PackTable table = pack_documents(lengths, capacity, packing, *rc::gen::arbitrary<uint32_t>());
    std::set<int64_t> seen;
    int64_t used = 0;
    for (int64_t row = 0; row < table.rows(); ++row) {
      int64_t filled = 0;
      for (const Piece& piece : table.row(row)) {
        const int64_t length = lengths[static_cast<size_t>(piece.document)];
        RC_ASSERT(seen.insert(piece.document).second);
        RC_ASSERT(piece.begin == 0 && piece.end == std::min(length, capacity));
        filled += piece.end;
      }
      RC_ASSERT(filled > 0 && filled <= capacity);
      used += filled;
    }
    RC_ASSERT(std::ssize(seen) ==
              std::count_if(lengths.begin(), lengths.end(), [](auto n) { return n > 0; }));
    RC_ASSERT(used + table.unused_tokens == std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  });
  EXPECT_TRUE(holds);
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

TEST(Packing, BestFitLeavesAtMostOneRowHalfEmpty) {
  const bool holds = rc::check("best fit", [] {
    const auto lengths = *rc::gen::container<Numbers>(rc::gen::inRange<int64_t>(1, 65));
    const PackTable table = pack_documents(lengths, 64, Packing::best_fit, 0);
    int half_empty = 0;
    for (int64_t row = 0; row < table.rows(); ++row) {
      int64_t filled = 0;
      for (const Piece& piece : table.row(row)) filled += piece.end;
      half_empty += filled <= 32 ? 1 : 0;
    }
    RC_ASSERT(half_empty <= 1);
  });
  EXPECT_TRUE(holds);
}

TEST(Packing, CountsWhatIsCutOff) {
  for (const Packing packing : {Packing::soft, Packing::best_fit, Packing::none}) {
    const PackTable table = pack_documents(Numbers{4, 13, 9}, 8, packing, 0);
    EXPECT_EQ(table.cut_documents, 2);
    EXPECT_EQ(table.unused_tokens, 6);
  }
}

}  // namespace
}  // namespace stepforge::testing
