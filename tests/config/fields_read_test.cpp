// SPDX-License-Identifier: Apache-2.0
// No key is accepted and then ignored: every field of the schema is read outside the config room.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/config/schema_docs.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

const fs::path kSources = source_dir() / "stepforge";

bool is_word(char character) {
  return std::isalnum(static_cast<unsigned char>(character)) != 0 || character == '_';
}

/// Removes comments, where a name is not a read.
std::string without_comments(const std::string& text) {
  std::string code;
  for (size_t at = 0; at < text.size();) {
    if (text.compare(at, 2, "//") == 0) {
      at = std::min(text.find('\n', at), text.size());
    } else if (text.compare(at, 2, "/*") == 0) {
      at = std::min(text.find("*/", at), text.size() - 2) + 2;
    } else {
      code += text[at++];
    }
  }
  return code;
}

/// Whether `code` contains ".field" or "->field" as a whole word, after `owner` or `owner()` if that is given.
bool reads(const std::string& code, const std::string& owner, const std::string& field) {
  for (const std::string access : {".", "->"}) {
    const std::string wanted = access + field;
    for (size_t at = code.find(wanted); at != std::string::npos; at = code.find(wanted, at + 1)) {
      const size_t end = at + wanted.size();
      if (end < code.size() && is_word(code[end])) continue;
      std::string before = code.substr(at > 80 ? at - 80 : 0, std::min<size_t>(at, 80));
      if (before.ends_with("()")) before.resize(before.size() - 2);
      if (!before.ends_with(owner)) continue;
      const size_t start = before.size() - owner.size();
      if (owner.empty() || start == 0 || !is_word(before[start - 1])) return true;
    }
  }
  return false;
}

/// The code of each file outside the config room.
std::vector<std::string> code_outside_config() {
  std::vector<std::string> code;
  for (const auto& entry : fs::recursive_directory_iterator(kSources)) {
    const fs::path inside = entry.path().lexically_relative(kSources);
    const fs::path extension = entry.path().extension();
    if (!entry.is_regular_file() || *inside.begin() == "config") continue;
    if (extension == ".cpp" || extension == ".h") code.push_back(without_comments(read_file(entry.path())));
  }
  return code;
}

bool has_trainer() {
  if (!fs::exists(kSources / "train")) return false;
  const fs::directory_iterator files(kSources / "train");
  return std::any_of(begin(files), end(files),
                     [](const auto& entry) { return entry.path().extension() == ".cpp"; });
}

/// Code passes nested tables around under other names, so their fields count as read in files that name the
/// type.
const std::map<std::string, std::string> kNestedTypes = {
    {"model.rope_scaling", "RopeScalingConfig"},
    {"adapter.patterns[]", "AdapterPatternConfig"},
    {"training.early_stopping", "EarlyStoppingConfig"},
    {"checkpoint.load", "CheckpointLoadConfig"},
    {"data.filter", "DataFilterConfig"},
    {"data.sources[]", "DataSourceConfig"},
    {"data.validation[]", "DataSourceConfig"},
    {"optimizer.param_groups[]", "ParamGroupConfig"},
    {"parallelism.fsdp_prefetch_lists[]", "PrefetchListConfig"},
    {"parallelism.pipeline_parallel_stages[]", "StageConfig"},
    {"parallelism.tensor_parallel_plan[]", "TensorPlanRule"},
};

bool read_somewhere(const std::vector<std::string>& files, const FieldInfo& info) {
  const size_t dot = info.name.rfind('.');
  const bool nested = dot != std::string::npos;
  const std::string type = nested ? kNestedTypes.at(info.section + "." + info.name.substr(0, dot)) : "";
  return std::any_of(files.begin(), files.end(), [&](const std::string& code) {
    if (!nested) return reads(code, info.section, info.name);
    return code.find(type) != std::string::npos && reads(code, "", info.name.substr(dot + 1));
  });
}

TEST(ConfigFields, ReadsAreRecognizedInCode) {
  EXPECT_TRUE(reads("x = config.training.steps;", "training", "steps"));
  EXPECT_TRUE(reads("training().steps", "training", "steps"));
  EXPECT_TRUE(reads("training->steps", "training", "steps"));
  EXPECT_TRUE(reads("s.factor)", "", "factor"));
  EXPECT_FALSE(reads("x = config.training.steps_left;", "training", "steps"));
  EXPECT_FALSE(reads("pretraining.steps", "training", "steps"));
  EXPECT_FALSE(reads("validation.steps", "training", "steps"));
  EXPECT_FALSE(reads(without_comments("// training.steps\n/* training.steps */"), "training", "steps"));
}

TEST(ConfigFields, EveryFieldIsReadOutsideTheConfigRoom) {
  if (!has_trainer()) GTEST_SKIP() << "stepforge/train/*.cpp does not exist";
  const std::vector<std::string> code = code_outside_config();
  std::vector<std::string> unread;
  for (const FieldInfo& info : all_fields()) {
    if (info.path() == "preset" || info.path() == "model.from") continue;  // applied by load_config
    if (!read_somewhere(code, info)) unread.push_back(info.path());
  }
  EXPECT_TRUE(unread.empty()) << "accepted but never read: " << join(unread, ", ");
}

}  // namespace
}  // namespace stepforge::testing
