// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/hub_name.h"
#include "stepforge/base/lfs_pointer.h"
#include "stepforge/text/pipeline_tokenizer.h"
#include "stepforge/text/sentencepiece_tokenizer.h"
#include "stepforge/text/tokenizer_files.h"
#include "stepforge/text/tokenizer_import.h"
#include "stepforge/text/tokenizer_json.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMaxTokenizerBytes = int64_t{128} << 20;

std::string read_tokenizer_file(const fs::path& path, int64_t max_bytes) {
  std::string bytes = read_file(path, max_bytes);
  refuse_lfs_pointer(bytes, static_cast<int64_t>(bytes.size()), path.string());
  return bytes;
}

TokenizerFiles read_folder(const fs::path& folder) {
  TokenizerFiles files = read_tokenizer_files(folder);
  const auto config = files.find("tokenizer_config.json");
  if (!files.contains("tokenizer.json"))
    files["tokenizer.json"] =
        tokenizer_json_of_gpt2(files.at("vocab.json"), files.at("merges.txt"),
                               config == files.end() ? "" : config->second, folder.string());
  return files;
}

TokenizerFiles read_tiktoken(const fs::path& path) {
  constexpr const char* kConfig = "tokenizer_config.json";
  TokenizerFiles files;
  const fs::path config = path.parent_path() / kConfig;
  if (fs::exists(config)) files[kConfig] = read_tokenizer_file(config, kMaxTokenizerBytes);
  files["tokenizer.json"] =
      tokenizer_json_of_tiktoken(read_tokenizer_file(path, kMaxTokenizerBytes),
                                 files.contains(kConfig) ? files.at(kConfig) : "", path.string());
  return files;
}

/// A model with another name than tokenizer.model is read alone.
std::unique_ptr<Tokenizer> read_sentencepiece(const fs::path& path) {
  const std::string name = path.filename().string();
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  TokenizerFiles files;
  if (name == "tokenizer.model")
    files = read_tokenizer_files(folder);
  else
    files[name] = read_tokenizer_file(path, kMaxTokenizerBytes);
  return make_sentencepiece_tokenizer(std::move(files), name, folder.string());
}

}  // namespace

bool holds_tokenizer(const fs::path& folder) {
  return fs::exists(folder / "tokenizer.json") || fs::exists(folder / "tokenizer.model") ||
         (fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt"));
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& path) {
  if (fs::is_directory(path)) {
    if (!holds_tokenizer(path)) {
      if (const std::string advice = hub_advice(path, HubKind::model); !advice.empty())
        throw UsageError(format("{} is not a tokenizer: {}", path.string(), advice));
      throw UsageError(format(
          "the folder {} contains neither tokenizer.json nor tokenizer.model nor vocab.json and merges.txt; "
          "make a tokenizer with `stepforge tokenizer train`",
          path.string()));
    }
    if (!fs::exists(path / "tokenizer.json") && fs::exists(path / "tokenizer.model"))
      return read_sentencepiece(path / "tokenizer.model");
    return std::make_unique<PipelineTokenizer>(read_folder(path), path.string());
  }
  if (!fs::exists(path)) {
    const std::string advice = hub_advice(path, HubKind::model);
    throw UsageError(
        format("there is no tokenizer at {}{}{}", path.string(), advice.empty() ? "" : "; ", advice));
  }
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (path.filename() == "tokenizer.json")
    return std::make_unique<PipelineTokenizer>(read_folder(folder), folder.string());
  if (path.extension() == ".model") return read_sentencepiece(path);
  if (path.extension() == ".tiktoken")
    return std::make_unique<PipelineTokenizer>(read_tiktoken(path), folder.string());
  if (path.extension() != ".json") {
    throw UsageError(
        format("{} is not a tokenizer: name tokenizer.json, tokenizer.model, a .tiktoken file, "
               "or the folder that has it",
               path.string()));
  }
  TokenizerFiles files;
  files["tokenizer.json"] = read_tokenizer_file(path, kMaxTokenizerBytes);
  return std::make_unique<PipelineTokenizer>(std::move(files), path.string());
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  TokenizerFiles files;
  files["tokenizer.json"] = tokenizer_json({}, {});
  return std::make_unique<PipelineTokenizer>(std::move(files), "byte tokenizer");
}

}  // namespace stepforge
