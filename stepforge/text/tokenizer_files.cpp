// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/tokenizer_files.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "stepforge/base/error.h"
#include "stepforge/base/file_writer.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/lfs_pointer.h"
#include "stepforge/base/staged.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMaxFileBytes = int64_t{128} << 20;
constexpr const char* kTemplateFolder = "additional_chat_templates";

bool is_tokenizer_file(std::string_view name) {
  constexpr std::array kNames = {"tokenizer.json",
                                 "tokenizer_config.json",
                                 "special_tokens_map.json",
                                 "added_tokens.json",
                                 "chat_template.jinja",
                                 "chat_template.json",
                                 "vocab.json",
                                 "merges.txt",
                                 "vocab.txt",
                                 "tekken.json",
                                 "spiece.model",
                                 "preprocessor_config.json",
                                 "processor_config.json",
                                 "image_processor_config.json",
                                 "video_preprocessor_config.json"};
  if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) return true;
  return name.ends_with(".tiktoken") || name.starts_with("tokenizer.model") || name.ends_with(".bpe.model");
}

/// Files that an export has in another form.
bool is_written_anew(std::string_view name) {
  constexpr std::array kEnds = {".safetensors", ".safetensors.index.json",
                                ".bin",         ".bin.index.json",
                                ".pt",          ".pth",
                                ".gguf",        ".h5",
                                ".msgpack",     ".onnx"};
  return name == "config.json" || name == "generation_config.json" ||
         std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

}  // namespace

TokenizerFiles read_tokenizer_files(const fs::path& folder) {
  TokenizerFiles files;
  const auto take = [&](const fs::path& path) {
    std::string& bytes = files[path.lexically_relative(folder).generic_string()];
    bytes = read_file(path, kMaxFileBytes);
    refuse_lfs_pointer(bytes, static_cast<int64_t>(bytes.size()), path.string());
  };
  for (const fs::path& path : entries_of(folder))
    if (is_tokenizer_file(path.filename().string()) && fs::is_regular_file(path)) take(path);
  if (!fs::is_directory(folder / kTemplateFolder)) return files;
  for (const fs::path& path : entries_of(folder / kTemplateFolder))
    if (path.extension() == ".jinja") take(path);
  return files;
}

void write_tokenizer_files(const TokenizerFiles& files, const fs::path& folder) {
  for (const auto& [name, content] : files) {
    const fs::path path = folder / name;
    create_folder_inside(folder, fs::path(name).parent_path());
    write_file_atomic(path, content);
  }
}

std::vector<std::string> files_left_behind(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::path& path : entries_of(folder)) {
    const std::string name = path.filename().string();
    if (name.starts_with('.') || is_tokenizer_file(name) || is_written_anew(name) || name == kTemplateFolder)
      continue;
    names.push_back(fs::is_directory(path) ? name + "/" : name);
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace stepforge
