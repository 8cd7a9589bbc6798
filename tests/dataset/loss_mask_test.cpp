// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/loss_mask.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "tests/dataset/test_support.h"

namespace stepforge::testing {
namespace {

using Flags = std::vector<uint8_t>;

constexpr DatasetContents kMasked{.type = TokenType::u16, .loss_mask = true};

std::shared_ptr<const IndexedDataset> write_masked(const std::filesystem::path& prefix,
                                                   const std::vector<Flags>& documents) {
  IndexedDatasetWriter writer(prefix, kMasked);
  for (const Flags& flags : documents) writer.add_document(std::vector<int32_t>(flags.size(), 7), flags);
  writer.publish();
  return std::make_shared<IndexedDataset>(prefix);
}

TEST(LossMask, ReadsTheFlagsThatWereWrittenFromAnyToken) {
  const bool holds = rc::check("round trip", [] {
    const auto documents =
        *rc::gen::container<std::vector<Flags>>(rc::gen::container<Flags>(rc::gen::inRange<uint8_t>(0, 2)));
    const TempFolder folder;
    const auto dataset = write_masked(folder / "pair", documents);
    Flags all;
    for (const Flags& flags : documents) all.insert(all.end(), flags.begin(), flags.end());
    for (size_t begin = 0; begin <= all.size(); begin += 3) {
      Flags found(all.size() - begin);
      dataset->read_counted(static_cast<int64_t>(begin), found);
      RC_ASSERT(std::equal(found.begin(), found.end(), all.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
  });
  EXPECT_TRUE(holds);
}

TEST(LossMask, HasTheBytesThatItsHeaderStates) {
  const TempFolder folder;
  write_masked(folder / "pair", {{1, 0, 0, 1, 0, 0, 0, 0}, {1, 1}});
  EXPECT_EQ(read_file(folder / "pair.mask"), std::string("SFMASK01\12\0\0\0\0\0\0\0\11\3", 18));
}

TEST(LossMask, AResumedWriterMakesTheSameFile) {
  const TempFolder folder;
  const std::vector<Flags> documents = {{1, 0, 1}, {0, 0, 0, 0, 1}, {1, 1, 1}};
  write_masked(folder / "whole", documents);
  IndexedDatasetWriter::Position position;
  {
    IndexedDatasetWriter first(folder / "parts", kMasked, {});
    first.add_document(std::vector<int32_t>(3, 7), documents[0]);
    position = first.save();
    first.add_document(std::vector<int32_t>(2, 7), Flags{1, 1});  // lost
  }
  IndexedDatasetWriter second(folder / "parts", kMasked, position);
  for (const size_t i : {1U, 2U})
    second.add_document(std::vector<int32_t>(documents[i].size(), 7), documents[i]);
  second.publish();
  EXPECT_EQ(read_file(folder / "parts.mask"), read_file(folder / "whole.mask"));
  EXPECT_EQ(read_file(folder / "parts.bin"), read_file(folder / "whole.bin"));
}

TEST(LossMask, ANewPairWithoutOneRemovesAnOldOne) {
  const TempFolder folder;
  write_masked(folder / "pair", {{0, 0, 0}});
  EXPECT_FALSE(write_dataset(folder / "pair", {{1, 2, 3}})->has_mask());
}

TEST(LossMask, ADatasetWithoutOneRefusesTokensThatDoNotCount) {
  const TempFolder folder;
  IndexedDatasetWriter writer(folder / "pair", {TokenType::u16});
  EXPECT_CONTAINS(message_of<Error>([&] { writer.add_document(std::vector<int32_t>{1, 2}, Flags{1, 0}); }),
                  "document 0 has tokens that do not count in the loss");
}

TEST(LossMask, TheContentKeyKnowsIt) {
  const TempFolder folder;
  EXPECT_NE(write_masked(folder / "a", {{1, 0}})->content_key(),
            write_masked(folder / "b", {{1, 1}})->content_key());
}

TEST(LossMask, RefusesAFileOfAnotherDatasetOrABrokenOne) {
  const TempFolder folder;
  write_masked(folder / "pair", {{1, 0, 1}});
  const std::string good = read_file(folder / "pair.mask");
  const auto open = [&](const std::string& bytes) {
    folder.write("pair.mask", bytes);
    return message_of<FormatError>([&] { IndexedDataset(folder / "pair"); });
  };
  EXPECT_CONTAINS(open(good.substr(0, 9)), "pair.mask: 9 bytes, too few for a header");
  EXPECT_CONTAINS(open("X" + good.substr(1)), "this is not a loss mask");
  std::string other = good;
  other[8] = 4;
  EXPECT_CONTAINS(open(other), "it is the mask of 4 tokens, but the dataset has 3");
  EXPECT_CONTAINS(open(good + "x"), "3 tokens make 17 bytes, but the file has 18");
}

}  // namespace
}  // namespace stepforge::testing
