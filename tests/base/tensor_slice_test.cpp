// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/tensor_slice.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

using Shape = std::vector<int64_t>;

/// The indices of a slice's elements in the flattened tensor of `shape`, in the slice's order.
std::vector<int64_t> elements_of(const Shape& shape, const TensorSlice& slice) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < slice.elements(); ++i) {
    int64_t rest = i;
    int64_t stride = 1;
    int64_t number = 0;
    for (size_t d = shape.size(); d-- > 0;) {
      number += (slice.offsets[d] + rest % slice.sizes[d]) * stride;
      rest /= slice.sizes[d];
      stride *= shape[d];
    }
    numbers.push_back(number);
  }
  return numbers;
}

std::vector<Shape> small_shapes() {
  return {{}, {1}, {7}, {3, 5}, {5, 1}, {1, 6}, {2, 3, 4}, {3, 1, 2}, {2, 2, 3, 2}};
}

TEST(TensorSlice, ARangeIsSplitIntoFewSlicesInOrder) {
  for (const Shape& shape : small_shapes()) {
    const TensorSlice whole = whole_slice(shape);
    for (int64_t begin = 0; begin <= whole.elements(); ++begin) {
      for (int64_t end = begin; end <= whole.elements(); ++end) {
        std::vector<int64_t> held;
        const std::vector<TensorSlice> slices = slices_of_range(whole, begin, end);
        for (const TensorSlice& slice : slices) {
          EXPECT_TRUE(contains(whole, slice));
          const std::vector<int64_t> more = elements_of(shape, slice);
          held.insert(held.end(), more.begin(), more.end());
        }
        std::vector<int64_t> expected(static_cast<size_t>(end - begin));
        std::iota(expected.begin(), expected.end(), begin);
        EXPECT_EQ(held, expected);
        EXPECT_LE(slices.size(), std::max<size_t>(1, 2 * shape.size() - (shape.empty() ? 0 : 1)));
      }
    }
  }
}

TEST(TensorSlice, ARangeOfWholeRowsIsOneSliceAndAnyOtherAtMostThree) {
  const TensorSlice whole = whole_slice({4, 10});
  EXPECT_EQ(slices_of_range(whole, 7, 32),
            (std::vector<TensorSlice>{{{0, 7}, {1, 3}}, {{1, 0}, {2, 10}}, {{3, 0}, {1, 2}}}));
  EXPECT_EQ(slices_of_range(whole, 10, 40), (std::vector<TensorSlice>{{{1, 0}, {3, 10}}}));
  EXPECT_EQ(slices_of_range(whole, 12, 15), (std::vector<TensorSlice>{{{1, 2}, {1, 3}}}));
}

TEST(TensorSlice, ARangeOfAPartKeepsTheOffsetsOfThePart) {
  const TensorSlice part = {{2, 5}, {3, 4}};
  EXPECT_EQ(slices_of_range(part, 2, 9),
            (std::vector<TensorSlice>{{{2, 7}, {1, 2}}, {{3, 5}, {1, 4}}, {{4, 5}, {1, 1}}}));
}

TEST(TensorSlice, TheIntersectionHoldsTheCommonElements) {
  const TensorSlice left = {{0, 2}, {3, 4}};
  EXPECT_EQ(intersection(left, {{2, 0}, {5, 3}}), (TensorSlice{{2, 2}, {1, 1}}));
  EXPECT_EQ(intersection(left, {{3, 2}, {1, 4}}), std::nullopt);
  EXPECT_EQ(intersection(left, {{0, 6}, {3, 1}}), std::nullopt);
  EXPECT_EQ(intersection({{}, {}}, {{}, {}}), (TensorSlice{{}, {}}));
}

TEST(TensorSlice, ContainsOnlySlicesInsideIt) {
  const TensorSlice slice = {{2, 0}, {3, 4}};
  EXPECT_TRUE(contains(slice, slice));
  EXPECT_TRUE(contains(slice, {{4, 3}, {1, 1}}));
  EXPECT_TRUE(contains(slice, {{5, 0}, {0, 4}}));
  EXPECT_FALSE(contains(slice, {{1, 0}, {1, 1}}));
  EXPECT_FALSE(contains(slice, {{4, 0}, {2, 1}}));
  EXPECT_FALSE(contains(slice, {{2, 0}, {-1, 1}}));
  EXPECT_FALSE(contains(slice, {{INT64_MAX, 0}, {INT64_MAX, 1}}));
  EXPECT_FALSE(contains(slice, {{2}, {1}}));
}

/// Every non-empty slice of `shape`.
std::vector<TensorSlice> all_slices(const Shape& shape) {
  std::vector<TensorSlice> slices = {{{}, {}}};
  for (const int64_t size : shape) {
    std::vector<TensorSlice> longer;
    for (const TensorSlice& slice : slices) {
      for (int64_t offset = 0; offset < size; ++offset) {
        for (int64_t extent = 1; offset + extent <= size; ++extent) {
          longer.push_back(slice);
          longer.back().offsets.push_back(offset);
          longer.back().sizes.push_back(extent);
        }
      }
    }
    slices = std::move(longer);
  }
  return slices;
}

TEST(TensorSlice, CopyPartWritesOnlyThatPart) {
  for (const Shape& shape : {Shape{}, Shape{5}, Shape{3, 3}, Shape{2, 2, 2}}) {
    for (const TensorSlice& from : all_slices(shape)) {
      const std::vector<int64_t> source = elements_of(shape, from);
      for (const TensorSlice& into : all_slices(shape)) {
        const auto part = intersection(from, into);
        if (!part) continue;
        const std::vector<int64_t> places = elements_of(shape, into);
        std::vector<int64_t> target(places.size(), -1);
        copy_part(*part, from, std::as_bytes(std::span(source)), into,
                  std::as_writable_bytes(std::span(target)), sizeof(int64_t));
        const std::vector<int64_t> copied = elements_of(shape, *part);
        for (size_t i = 0; i < places.size(); ++i) {
          const bool wanted = std::find(copied.begin(), copied.end(), places[i]) != copied.end();
          ASSERT_EQ(target[i], wanted ? places[i] : -1);
        }
      }
    }
  }
}

TEST(TensorSlice, TheTextHasOneRangePerDimension) {
  EXPECT_EQ(slice_text({{0, 16}, {4, 16}}), "[0:4, 16:32]");
  EXPECT_EQ(slice_text({{}, {}}), "[]");
}

}  // namespace
}  // namespace stepforge::testing
