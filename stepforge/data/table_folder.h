// SPDX-License-Identifier: Apache-2.0
// Which tables of a folder are read: one split of one data set. Knows the names of the Hugging Face Hub
// (train-00000-of-00002.parquet), of the cache of Hugging Face's datasets (news-train.arrow, with copies named cache-...), and of
// its save_to_disk (state.json lists the files).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace stepforge {

struct TableChoice {
  std::vector<std::filesystem::path> chosen;
  std::vector<std::filesystem::path> left_out;
  std::string note;  ///< which split is read, if there are several; otherwise ""
};

/// Chooses among `tables`, which lie in `folder` or below it. Of several splits `train` is taken. Throws UsageError that names
/// what there is if there are several splits without `train`, or several data sets; FormatError if a state.json names a file that
/// is not there or not in its folder.
TableChoice choose_tables(const std::filesystem::path& folder,
                          const std::vector<std::filesystem::path>& tables);

/// Whether it is one of the files that describe a data set of Hugging Face's datasets.
bool describes_data_set(const std::filesystem::path& path);

/// The split that a path below a data set's folder names: "train" of train-00000-of-00002.parquet, news-train.arrow and
/// train/0000.parquet; "" if it names none.
std::string split_of(const std::filesystem::path& relative);

}  // namespace stepforge
