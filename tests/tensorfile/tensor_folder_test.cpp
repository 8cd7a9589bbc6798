// SPDX-License-Identifier: Apache-2.0
#include "stepforge/tensorfile/tensor_folder.h"

#include <numeric>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/random.h"
#include "stepforge/tensorfile/dcp.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/tensorfile/build_file.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;
using Shape = std::vector<int64_t>;

/// A part of tensor "t", of which element i is i.
struct Part {
  TensorSlice slice;
  DType dtype = DType::i32;
};

std::vector<int32_t> numbers_in(const Shape& shape, const TensorSlice& slice) {
  std::vector<int32_t> all(static_cast<size_t>(whole_slice(shape).elements()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<int32_t> numbers(static_cast<size_t>(slice.elements()));
  copy_part(slice, whole_slice(shape), std::as_bytes(std::span(all)), slice,
            std::as_writable_bytes(std::span(numbers)), sizeof(int32_t));
  return numbers;
}

/// One file for each part.
std::vector<fs::path> write_parts(const TempFolder& folder, const Shape& shape,
                                  const std::vector<Part>& parts) {
  std::vector<fs::path> paths;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [slice, dtype] = parts[i];
    paths.push_back(folder / format("{}.safetensors", i));
    SafetensorsWriter writer(paths.back(), {{"t", dtype, slice.sizes}}, dcp_metadata({{"t", slice.offsets}}));
    const std::vector<int32_t> numbers = contains(whole_slice(shape), slice)
                                             ? numbers_in(shape, slice)
                                             : std::vector<int32_t>(static_cast<size_t>(slice.elements()));
    const auto bytes = std::as_bytes(std::span(numbers));
    const auto size = static_cast<size_t>(dtype_bytes(dtype));
    if (!bytes.empty()) writer.write("t", bytes.first(numbers.size() * size));
    writer.finish();
  }
  return paths;
}

/// Every element of the tensor in parts of ranges cut at random.
std::vector<Part> random_cut(const Shape& shape, uint64_t seed) {
  const TensorSlice whole = whole_slice(shape);
  std::vector<Part> parts;
  int64_t begin = 0;
  while (begin < whole.elements()) {
    const int64_t most = whole.elements() - begin;
    const int64_t end = begin + 1 + static_cast<int64_t>(mix_bits(seed++) % static_cast<uint64_t>(most));
    for (TensorSlice& slice : slices_of_range(whole, begin, end)) parts.push_back({std::move(slice)});
    begin = end;
  }
  return parts;
}

TEST(TensorFolder, ATransposedMatrixIsReadAsIfTheFilesHadItsTranspose) {
  const TempFolder folder;
  const Shape shape{3, 5};
  TensorFolder tensors(write_parts(folder, shape, random_cut(shape, 7)));
  tensors.transpose("t");
  EXPECT_EQ(tensors.find("t")->shape, (Shape{5, 3}));
  const TensorSlice slice{{1, 1}, {4, 2}};
  std::vector<int32_t> values(7);
  tensors.read("t", slice, 1, 8, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values, (std::vector<int32_t>{11, 7, 12, 8, 13, 9, 14})) << "element (i, j) is 5 j + i";
  tensors.transpose("t");
  std::vector<int32_t> first(2);
  tensors.read("t", {{0, 0}, {1, 2}}, std::as_writable_bytes(std::span(first)));
  EXPECT_EQ(first, (std::vector<int32_t>{0, 1}));
}

TEST(TensorFolder, ASecondNameIsOfTheSameTensorUnlessThereIsOne) {
  const TempFolder folder;
  TensorFolder tensors(write_parts(folder, {4}, {{whole_slice({4})}}));
  tensors.add_name("t", "again");
  std::vector<int32_t> values(4);
  tensors.read("again", whole_slice({4}), std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(tensors.find("again")->name, "again");
  tensors.add_name("again", "t");
  EXPECT_EQ(tensors.find("t")->name, "t");
}

void expect_all_ranges(const TensorFolder& folder, const Shape& shape) {
  const TensorSlice whole = whole_slice(shape);
  for (int64_t begin = 0; begin <= whole.elements(); ++begin) {
    for (int64_t end = begin; end <= whole.elements(); ++end) {
      std::vector<int32_t> values(static_cast<size_t>(end - begin));
      folder.read("t", whole, begin, end, std::as_writable_bytes(std::span(values)));
      std::vector<int32_t> expected(values.size());
      std::iota(expected.begin(), expected.end(), static_cast<int32_t>(begin));
      ASSERT_EQ(values, expected);
      for (const TensorSlice& slice : slices_of_range(whole, begin, end)) {
        std::vector<int32_t> part(static_cast<size_t>(slice.elements()));
        folder.read("t", slice, std::as_writable_bytes(std::span(part)));
        ASSERT_EQ(part, numbers_in(shape, slice));
      }
    }
  }
}

TEST(TensorFolder, ReadsAnySliceHoweverTheTensorIsDivided) {
  for (const Shape& shape : {Shape{11}, Shape{3, 5}, Shape{2, 3, 4}, Shape{1, 7}, Shape{5, 1}}) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      const TempFolder files;
      const TensorFolder folder(write_parts(files, shape, random_cut(shape, 100 * seed)));
      EXPECT_EQ(folder.find("t")->shape, shape);
      EXPECT_EQ(folder.find("t")->dtype, DType::i32);
      expect_all_ranges(folder, shape);
    }
  }
}

TEST(TensorFolder, ReadsColumnsAndScalars) {
  const TempFolder files;
  const Shape shape = {4, 6};
  expect_all_ranges(
      TensorFolder(write_parts(files, shape, {{{{0, 2}, {4, 3}}}, {{{0, 5}, {4, 1}}}, {{{0, 0}, {4, 2}}}})),
      shape);
  const TempFolder scalar;
  expect_all_ranges(TensorFolder(write_parts(scalar, {}, {{{{}, {}}}})), {});
}

std::string refusal(const Shape& shape, const std::vector<Part>& parts) {
  const TempFolder files;
  const auto paths = write_parts(files, shape, parts);
  return message_of<FormatError>([&] { const TensorFolder folder(paths); });
}

TEST(TensorFolder, RefusesPartsThatOverlapNamingFilesTensorAndSlice) {
  const std::string message = refusal({4, 4}, {{{{0, 0}, {2, 4}}}, {{{1, 3}, {1, 1}}}, {{{2, 0}, {2, 4}}}});
  EXPECT_CONTAINS(message, "\"t\" is in ");
  EXPECT_CONTAINS(message, "/0.safetensors and in ");
  EXPECT_CONTAINS(message, "/1.safetensors, which both hold [1:2, 3:4]");
  // The right number of elements, but one is there twice and another one is missing.
  EXPECT_CONTAINS(refusal({4}, {{{{0}, {2}}}, {{{1}, {1}}}, {{{3}, {1}}}}), "both hold [1:2]");
}

TEST(TensorFolder, RefusesATensorWithHolesNamingItAndItsFiles) {
  const std::string message = refusal({4, 4}, {{{{0, 0}, {2, 4}}}, {{{3, 0}, {1, 4}}}});
  EXPECT_CONTAINS(message, "\"t\" [4, 4]: 4 of 16 elements are in no file");
  EXPECT_CONTAINS(message, "0.safetensors");
  EXPECT_CONTAINS(message, "1.safetensors");
  EXPECT_CONTAINS(refusal({4}, {{{{1}, {3}}}}), "1 of 4 elements");
  EXPECT_CONTAINS(refusal({4}, {{{{0}, {4}}}, {{{9}, {0}}}}), "5 of 9 elements");
}

TEST(TensorFolder, RefusesPartsOfDifferentTypesOrDimensions) {
  EXPECT_CONTAINS(refusal({4}, {{{{0}, {2}}}, {{{2}, {2}}, DType::u8}}), "is I32 of 1 dimensions in ");
  EXPECT_CONTAINS(refusal({4}, {{{{0}, {2}}}, {{{2, 0}, {2, 1}}}}), "but I32 of 2 in ");
}

TEST(TensorFolder, RefusesImpossibleShapes) {
  const int64_t far = int64_t{1} << 40;
  EXPECT_CONTAINS(refusal({1, 1}, {{{{0, 0}, {1, 1}}}, {{{far, far}, {1, 1}}}}), "impossible shape");
}

TEST(TensorFolder, EmptyPartsAtTheEndOfTheNumbersAreRefusedLikeOthers) {
  TensorSlice far = {Shape(30, 1), Shape(30, 0)};
  far.offsets[0] = int64_t{1} << 62;
  EXPECT_CONTAINS(refusal(Shape(30, 1), {{far, DType::u8}}), "elements are in no file");
  const TempFolder files;
  const TensorFolder empty(write_parts(files, {0, 4}, {{{{0, 0}, {0, 4}}}}));
  EXPECT_EQ(empty.find("t")->shape, (Shape{0, 4}));
  EXPECT_NO_THROW(empty.read("t", whole_slice({0, 4}), 0, 0, {}));
}

/// If files were mapped, reading one that has become shorter would kill the program.
TEST(TensorFolder, ReadsOnlyTheRequestedBytes) {
  const TempFolder files;
  const Shape shape = {4, 65536};
  const auto paths = write_parts(files, shape, {{{{0, 0}, {3, 65536}}}, {{{3, 0}, {1, 65536}}}});
  const TensorFolder folder(paths);
  fs::resize_file(paths[0], 2 * 65536 * sizeof(int32_t));
  fs::resize_file(paths[1], 0);
  const TensorSlice wanted = {{0, 60000}, {2, 100}};
  std::vector<int32_t> values(200);
  folder.read("t", wanted, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values, numbers_in(shape, wanted));
  // Across the boundary of its two rows.
  folder.read("t", wanted, 90, 110, std::as_writable_bytes(std::span(values).first(20)));
  EXPECT_TRUE(std::equal(values.begin(), values.begin() + 20, numbers_in(shape, wanted).begin() + 90));
}

TEST(TensorFolder, ListsEveryTensorThatIsWrong) {
  const TempFolder folder;
  std::vector<fs::path> paths;
  for (const char* name : {"one", "two"}) {
    paths.push_back(folder / (std::string(name) + ".safetensors"));
    SafetensorsWriter writer(paths.back(), {{"a", DType::u8, {1}}, {"b", DType::u8, {1}}});
    writer.write("a", as_bytes("a"));
    writer.write("b", as_bytes("b"));
    writer.finish();
  }
  const std::string message = message_of<FormatError>([&] { const TensorFolder tensors(paths); });
  EXPECT_CONTAINS(message, "2 errors");
  EXPECT_CONTAINS(message, format("\"b\" is in {} and in {}", paths[0].string(), paths[1].string()));
}

TEST(TensorFolder, RefusesToReadUnknownTensorsAndSlicesOutside) {
  const TempFolder files;
  const TensorFolder folder(write_parts(files, {2, 3}, {{{{0, 0}, {2, 3}}}}));
  std::vector<std::byte> target(12);
  const TensorSlice whole = whole_slice({2, 3});
  EXPECT_THROW(folder.read("u", whole, 0, 3, target), Error);
  EXPECT_THROW(folder.read("t", whole, 4, 7, target), Error);
  EXPECT_THROW(folder.read("t", {{1, 0}, {1, 3}}, 1, 4, target), Error);
  EXPECT_THROW(folder.read("t", whole, -1, 2, target), Error);
  EXPECT_THROW(folder.read("t", whole, 0, 4, target), Error);
  EXPECT_THROW(folder.read("t", {{1, 1}, {1, 3}}, target), Error);
  EXPECT_THROW(folder.read("t", {{0}, {3}}, target), Error);
  EXPECT_NO_THROW(folder.read("t", {{1, 0}, {1, 3}}, target));
}

}  // namespace
}  // namespace stepforge::testing
