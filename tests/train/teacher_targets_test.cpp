// SPDX-License-Identifier: Apache-2.0
// The file of a teacher's predictions: which of them a token gets.
#include "stepforge/train/teacher_targets.h"

#include <numeric>
#include <span>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/data/context_part.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// Rows of 8 tokens, of which every third and the first ones of odd rows do not count.
class PartlyLabelled : public RowSource {
 public:
  explicit PartlyLabelled(int64_t rows, int32_t base) : rows_(rows), base_(base) {}
  const std::string& name() const override { return name_; }
  int64_t rows() const override { return rows_; }
  int64_t seq_len() const override { return 8; }
  void read(int64_t number, Row& row) const override {
    row = {};
    row.tokens.resize(9);
    std::iota(row.tokens.begin(), row.tokens.end(), base_ + 10 * static_cast<int32_t>(number));
    for (size_t i = 0; i < 9; ++i)
      row.counted.push_back(i % 3 == 2 || (number % 2 == 1 && i < 4) ? uint8_t{0} : uint8_t{1});
  }
  const std::string& fingerprint() const override { return name_; }
  int64_t tokens() const override { return rows_ * 8; }
  std::optional<int64_t> text_bytes() const override { return std::nullopt; }

 private:
  int64_t rows_;
  int32_t base_;
  std::string name_ = "partly labelled";
};

constexpr int64_t kKept = 2;

std::shared_ptr<const RowStream> labelled_rows() {
  return RowStream::mixture(
      {{std::make_shared<PartlyLabelled>(5, 0), 0.5}, {std::make_shared<PartlyLabelled>(5, 1000), 0.5}}, 3,
      /*shuffle=*/true);
}

/// The targets of a label are the label and its double.
std::filesystem::path write_targets(const TempFolder& folder, const RowStream& rows) {
  const auto every_row = rows.every_row();
  std::filesystem::path file = folder / "teacher.safetensors";
  TargetsWriter writer(file, {"rows", "teacher", kKept}, labels_before_rows(*every_row, [] {}));
  for (int64_t row = 0; row < *every_row->total_rows(); ++row) {
    std::vector<float> values;
    for (const int32_t label : every_row->rows(row, 1).labels) {
      if (label == kIgnoredLabel) continue;
      const auto id = static_cast<float>(label);
      values.insert(values.end(), {id, 2 * id, -id, -2 * id});
    }
    writer.add({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }
  writer.publish();
  return file;
}

void expect_own_targets(const Batch& batch, const SoftTargets& targets) {
  const auto* ids = targets.ids.const_data_ptr<int32_t>();
  const auto* log_probs = targets.log_probs.const_data_ptr<float>();
  ASSERT_EQ(targets.ids.numel(), std::ssize(batch.labels) * kKept);
  for (size_t token = 0; token < batch.labels.size(); ++token) {
    const int32_t label = batch.labels[token] == kIgnoredLabel ? 0 : batch.labels[token];
    EXPECT_EQ(ids[kKept * token], label);
    EXPECT_EQ(ids[kKept * token + 1], 2 * label);
    EXPECT_EQ(log_probs[kKept * token], static_cast<float>(-label));
    EXPECT_EQ(log_probs[kKept * token + 1], static_cast<float>(-2 * label));
  }
}

TEST(TeacherTargets, EachLabelHasItsOwnInAnyOrderOfTheRowsAndInEachPart) {
  const TempFolder folder;
  const auto rows = labelled_rows();
  const TeacherTargets targets(write_targets(folder, *rows), {"rows", "teacher", kKept}, rows->every_row());
  const Batch whole = rows->rows(3, 11);
  expect_own_targets(whole, targets.of(whole));
  for (const bool head_tail : {false, true}) {
    for (int64_t index = 0; index < 2; ++index) {
      const Batch part = take_part(whole, {.index = index, .degree = 2, .head_tail = head_tail});
      expect_own_targets(part, targets.of(part));
    }
  }
}

TEST(TeacherTargets, MaskedLabelsHaveNoneAndOthersAreRefused) {
  const TempFolder folder;
  const auto rows = labelled_rows();
  const TeacherTargets targets(write_targets(folder, *rows), {"rows", "teacher", kKept}, rows->every_row());
  Batch batch = rows->rows(3, 2);
  batch.labels.at(4) = kIgnoredLabel;
  expect_own_targets(batch, targets.of(batch));
  batch.labels.at(6) += 1;
  EXPECT_CONTAINS(message_of<Error>([&] { targets.of(batch); }), "other labels than its teacher");
}

TEST(TeacherTargets, PaddingHasNone) {
  const TempFolder folder;
  const auto rows = labelled_rows();
  const TeacherTargets targets(write_targets(folder, *rows), {"rows", "teacher", kKept}, rows->every_row());
  const Batch padding = padding_batch(8, 2);
  expect_own_targets(padding, targets.of(padding));
}

TEST(TeacherTargets, OthersAreRefused) {
  const TempFolder folder;
  const auto rows = labelled_rows();
  const auto file = write_targets(folder, *rows);
  const auto fault = [&](const TargetsIdentity& identity) {
    return message_of<UsageError>([&] { TeacherTargets(file, identity, rows->every_row()); });
  };
  EXPECT_CONTAINS(fault({"other rows", "teacher", kKept}), "for other data");
  EXPECT_CONTAINS(fault({"rows", "another", kKept}), "not the one of distillation.teacher");
  EXPECT_CONTAINS(fault({"rows", "teacher", 3}), "with 2 tokens for each label");
  EXPECT_CONTAINS(fault({"rows", "teacher", kKept, 2.5}),
                  "at temperature 1, and distillation.temperature = 2.5");
  EXPECT_NO_THROW(TeacherTargets(file, {"rows", "", kKept}, rows->every_row())) << "a teacher that is gone";
}

TEST(TeacherTargets, AFileThatIsNotPublishedIsNotThere) {
  const TempFolder folder;
  const auto file = folder / "teacher.safetensors";
  {
    const TargetsWriter writer(file, {"rows", "teacher", kKept}, {0, 4});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace stepforge::testing
