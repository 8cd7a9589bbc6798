#include "stepforge/base/tensor_box.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace stepforge {
namespace {

using Shape = std::vector<int64_t>;

/// The numbers of a box's elements in a tensor of `shape`, in the box's order.
std::vector<int64_t> elements_of(const Shape& shape, const TensorBox& box) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < box.elements(); ++i) {
    int64_t rest = i;
    int64_t stride = 1;
    int64_t number = 0;
    for (size_t d = shape.size(); d-- > 0;) {
      number += (box.offsets[d] + rest % box.sizes[d]) * stride;
      rest /= box.sizes[d];
      stride *= shape[d];
    }
    numbers.push_back(number);
  }
  return numbers;
}

std::vector<Shape> small_shapes() {
  return {{}, {1}, {7}, {3, 5}, {5, 1}, {1, 6}, {2, 3, 4}, {3, 1, 2}, {2, 2, 3, 2}};
}

TEST(TensorBox, ARangeIsCutIntoBoxesThatHoldItInOrderAndFewOfThem) {
  for (const Shape& shape : small_shapes()) {
    const TensorBox whole = whole_box(shape);
    for (int64_t begin = 0; begin <= whole.elements(); ++begin) {
      for (int64_t end = begin; end <= whole.elements(); ++end) {
        std::vector<int64_t> held;
        const std::vector<TensorBox> boxes = boxes_of_range(whole, begin, end);
        for (const TensorBox& box : boxes) {
          EXPECT_TRUE(contains(whole, box));
          const std::vector<int64_t> more = elements_of(shape, box);
          held.insert(held.end(), more.begin(), more.end());
        }
        std::vector<int64_t> expected(static_cast<size_t>(end - begin));
        std::iota(expected.begin(), expected.end(), begin);
        EXPECT_EQ(held, expected);
        EXPECT_LE(boxes.size(), std::max<size_t>(1, 2 * shape.size() - (shape.empty() ? 0 : 1)));
      }
    }
  }
}

TEST(TensorBox, ARangeInsideRowsHasThreeBoxesAndOneOfWholeRowsOne) {
  const TensorBox whole = whole_box({4, 10});
  EXPECT_EQ(boxes_of_range(whole, 7, 32),
            (std::vector<TensorBox>{{{0, 7}, {1, 3}}, {{1, 0}, {2, 10}}, {{3, 0}, {1, 2}}}));
  EXPECT_EQ(boxes_of_range(whole, 10, 40), (std::vector<TensorBox>{{{1, 0}, {3, 10}}}));
  EXPECT_EQ(boxes_of_range(whole, 12, 15), (std::vector<TensorBox>{{{1, 2}, {1, 3}}}));
}

TEST(TensorBox, ARangeOfAPartLiesWhereThePartLies) {
  const TensorBox part = {{2, 5}, {3, 4}};
  EXPECT_EQ(boxes_of_range(part, 2, 9),
            (std::vector<TensorBox>{{{2, 7}, {1, 2}}, {{3, 5}, {1, 4}}, {{4, 5}, {1, 1}}}));
}

TEST(TensorBox, TwoHaveInCommonTheElementsThatBothHold) {
  const TensorBox left = {{0, 2}, {3, 4}};
  EXPECT_EQ(intersection(left, {{2, 0}, {5, 3}}), (TensorBox{{2, 2}, {1, 1}}));
  EXPECT_EQ(intersection(left, {{3, 2}, {1, 4}}), std::nullopt);
  EXPECT_EQ(intersection(left, {{0, 6}, {3, 1}}), std::nullopt);
  EXPECT_EQ(intersection({{}, {}}, {{}, {}}), (TensorBox{{}, {}}));
}

TEST(TensorBox, ContainsWhatDoesNotReachOutOfIt) {
  const TensorBox box = {{2, 0}, {3, 4}};
  EXPECT_TRUE(contains(box, box));
  EXPECT_TRUE(contains(box, {{4, 3}, {1, 1}}));
  EXPECT_TRUE(contains(box, {{5, 0}, {0, 4}}));
  EXPECT_FALSE(contains(box, {{1, 0}, {1, 1}}));
  EXPECT_FALSE(contains(box, {{4, 0}, {2, 1}}));
  EXPECT_FALSE(contains(box, {{2, 0}, {-1, 1}}));
  EXPECT_FALSE(contains(box, {{INT64_MAX, 0}, {INT64_MAX, 1}}));
  EXPECT_FALSE(contains(box, {{2}, {1}}));
}

/// Every box inside `shape`, empty ones left out.
std::vector<TensorBox> all_boxes(const Shape& shape) {
  std::vector<TensorBox> boxes = {{{}, {}}};
  for (const int64_t size : shape) {
    std::vector<TensorBox> longer;
    for (const TensorBox& box : boxes) {
      for (int64_t offset = 0; offset < size; ++offset) {
        for (int64_t extent = 1; offset + extent <= size; ++extent) {
          longer.push_back(box);
          longer.back().offsets.push_back(offset);
          longer.back().sizes.push_back(extent);
        }
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

TEST(TensorBox, APartIsCopiedToItsPlaceAndNothingElseChanges) {
  for (const Shape& shape : {Shape{}, Shape{5}, Shape{3, 3}, Shape{2, 2, 2}}) {
    for (const TensorBox& from : all_boxes(shape)) {
      const std::vector<int64_t> source = elements_of(shape, from);
      for (const TensorBox& into : all_boxes(shape)) {
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

TEST(TensorBox, IsWrittenAsASlice) {
  EXPECT_EQ(box_text({{0, 16}, {4, 16}}), "[0:4, 16:32]");
  EXPECT_EQ(box_text({{}, {}}), "[]");
}

}  // namespace
}  // namespace stepforge
