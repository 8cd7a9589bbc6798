// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/random.h"
#include "stepforge/tensorfile/safetensors.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/tensorfile/build_file.h"

namespace stepforge::testing {
namespace {

/// Random bytes for a tensor.
std::string content(const TensorSpec& spec, uint64_t key) {
  std::string bytes(static_cast<size_t>(spec.bytes()), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(philox(key, i)[0]);
  return bytes;
}

/// Random tensors of every type: scalars, empty ones, odd sizes, names in UTF-8.
std::vector<TensorSpec> random_specs(uint64_t key) {
  std::vector<TensorSpec> specs;
  const size_t count = philox(key, 0)[0] % 8;
  for (size_t i = 0; i < count; ++i) {
    const auto words = philox(key, i + 1);
    TensorSpec spec = {format("layer.{}.\"é\\{}", i, words[0]), static_cast<DType>(words[1] % 10), {}};
    for (size_t dim = 0; dim < words[2] % 4; ++dim) spec.shape.push_back((words[3] >> (8 * dim)) % 6);
    specs.push_back(spec);
  }
  return aligned_order(specs);
}

TEST(SafetensorsWriter, TheReaderReadsWrittenTensorsBitForBit) {
  const TempFolder folder;
  for (uint64_t key = 0; key < 200; ++key) {
    const std::vector<TensorSpec> specs = random_specs(key);
    const SafetensorsMetadata metadata = {{"format", "pt"}, {"key \"é\"\n", format("{}", key)}};
    SafetensorsWriter writer(folder / "f", specs, metadata);
    for (const TensorSpec& spec : specs) {
      const std::string bytes = content(spec, key);
      const size_t cut = bytes.size() / 3;
      if (cut > 0) writer.write(spec.name, as_bytes(bytes).first(cut));
      if (!bytes.empty()) writer.write(spec.name, as_bytes(bytes).subspan(cut));
    }
    writer.finish();

    const SafetensorsFile file(folder / "f");
    EXPECT_EQ(file.metadata(), metadata);
    ASSERT_EQ(file.tensors().size(), specs.size());
    for (const TensorSpec& spec : specs) {
      const TensorEntry* entry = file.find(spec.name);
      ASSERT_NE(entry, nullptr);
      EXPECT_EQ(entry->dtype, spec.dtype);
      EXPECT_EQ(entry->shape, spec.shape);
      EXPECT_EQ(entry->begin % dtype_bytes(spec.dtype), 0);
      EXPECT_EQ(as_text(file.bytes(*entry)), content(spec, key));
    }
  }
}

TEST(SafetensorsWriter, TheDataStartsAtAMultipleOfEight) {
  const TempFolder folder;
  for (size_t length = 1; length < 20; ++length) {
    SafetensorsWriter writer(folder / "f", {{std::string(length, 'n'), DType::u8, {1}}});
    writer.write(std::string(length, 'n'), as_bytes("x"));
    writer.finish();
    const std::string bytes = read_file(folder / "f");
    EXPECT_EQ(bytes.size() % 8, 1U);
    EXPECT_EQ(bytes[8], '{');
  }
}

TEST(SafetensorsWriter, WritesExactlyTheDocumentedBytes) {
  const TempFolder folder;
  SafetensorsWriter writer(folder / "f", {{"ab", DType::bf16, {1, 2}}}, {{"format", "pt"}});
  writer.write("ab", as_bytes("wxyz"));
  writer.finish();
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"ab":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}})";
  EXPECT_EQ(read_file(folder / "f"), build_file(header + "       ") + "wxyz");
}

TEST(SafetensorsWriter, TensorsMustBeCompleteAndInOrder) {
  const TempFolder folder;
  SafetensorsWriter writer(folder / "f",
                           {{"a", DType::u8, {2}}, {"none", DType::u8, {0}}, {"b", DType::u8, {2}}});
  EXPECT_CONTAINS(message_of<Error>([&] { writer.write("b", as_bytes("xy")); }), "but the next one is a");
  writer.write("a", as_bytes("x"));
  EXPECT_CONTAINS(message_of<Error>([&] { writer.write("b", as_bytes("xy")); }), "but the next one is a");
  EXPECT_CONTAINS(message_of<Error>([&] { writer.write("a", as_bytes("yz")); }), "takes only 1 more");
  writer.write("a", as_bytes("y"));
  EXPECT_CONTAINS(message_of<Error>([&] { writer.finish(); }), "tensor b has only 0 of its 2 bytes");
  writer.write("b", as_bytes("zz"));
  EXPECT_CONTAINS(message_of<Error>([&] { writer.write("b", as_bytes("z")); }), "all tensors are complete");
  writer.finish();
}

TEST(SafetensorsWriter, AnUnfinishedFileIsRemoved) {
  const TempFolder folder;
  {
    SafetensorsWriter writer(folder / "f", {{"a", DType::u8, {2}}});
    writer.write("a", as_bytes("x"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriter, RefusesToWriteWhatTheReaderWouldRefuse) {
  const TempFolder folder;
  const auto refusal = [&](std::vector<TensorSpec> specs, const SafetensorsMetadata& metadata = {}) {
    return message_of<Error>([&] { SafetensorsWriter(folder / "f", std::move(specs), metadata); });
  };
  EXPECT_CONTAINS(refusal({{"a", DType::u8, {1}}, {"a", DType::u8, {1}}}), "duplicate tensor name");
  EXPECT_CONTAINS(refusal({{"", DType::u8, {1}}}), "empty tensor name");
  EXPECT_CONTAINS(refusal({{"a\n", DType::u8, {1}}}), "control byte");
  EXPECT_CONTAINS(refusal({{"\xff", DType::u8, {1}}}), "UTF-8");
  EXPECT_CONTAINS(refusal({{"a", DType::u8, {-1}}}), "impossible shape [-1]");
  EXPECT_CONTAINS(refusal({{"a", DType::f32, {int64_t{1} << 62}}}), "impossible shape");
  EXPECT_CONTAINS(refusal({{"a", DType::u8, {1}}, {"b", DType::f32, {1}}}), "aligned_order");
  EXPECT_CONTAINS(refusal({}, {{"a", "\xff"}}), "UTF-8");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriter, AnUnwritablePathIsAnErrorThatNamesIt) {
  const TempFolder folder;
  const auto create = [&] { SafetensorsWriter(folder / "missing" / "f", {}); };
  EXPECT_CONTAINS(message_of<Error>(create), (folder / "missing" / "f").string());
}

TEST(AlignedOrder, PutsLargeElementsFirstAndKeepsTheOrderOtherwise) {
  const std::vector<TensorSpec> specs = aligned_order({{"a", DType::u8, {3}},
                                                       {"b", DType::f32, {1}},
                                                       {"c", DType::bf16, {1}},
                                                       {"d", DType::i32, {1}},
                                                       {"e", DType::i64, {1}}});
  std::string order;
  for (const TensorSpec& spec : specs) order += spec.name;
  EXPECT_EQ(order, "ebdca");
}

}  // namespace
}  // namespace stepforge::testing
