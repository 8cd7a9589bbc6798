// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/text/pipeline_tokenizer.h"
#include "stepforge/text/tokenizer_json.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMaxTokenizerBytes = int64_t{128} << 20;
constexpr int64_t kMaxCompanionBytes = int64_t{64} << 20;
constexpr std::array kCompanionNames = {"tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt"};

TokenizerFiles read_folder(const fs::path& folder) {
  TokenizerFiles files;
  files["tokenizer.json"] = read_file(folder / "tokenizer.json", kMaxTokenizerBytes);
  for (const char* name : kCompanionNames) {
    if (fs::exists(folder / name)) files[name] = read_file(folder / name, kMaxCompanionBytes);
  }
  return files;
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& path) {
  if (fs::is_directory(path)) {
    if (!fs::exists(path / "tokenizer.json")) {
      throw UsageError(
          format("the folder {} contains no tokenizer.json; make one with `stepforge tokenizer train`",
                 path.string()));
    }
    return std::make_unique<PipelineTokenizer>(read_folder(path), path.string());
  }
  if (!fs::exists(path)) throw UsageError(format("there is no tokenizer at {}", path.string()));
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (path.filename() == "tokenizer.json")
    return std::make_unique<PipelineTokenizer>(read_folder(folder), folder.string());
  TokenizerFiles files;
  files["tokenizer.json"] = read_file(path, kMaxTokenizerBytes);
  return std::make_unique<PipelineTokenizer>(std::move(files), path.string());
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  TokenizerFiles files;
  files["tokenizer.json"] = tokenizer_json({}, {});
  return std::make_unique<PipelineTokenizer>(std::move(files), "byte tokenizer");
}

}  // namespace stepforge
