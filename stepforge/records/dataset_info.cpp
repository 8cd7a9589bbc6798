// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/dataset_info.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/utf8.h"
#include "stepforge/records/chat_fields.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kInfoFile = "dataset_info.json";
constexpr JsonLimits kInfoLimits{.max_bytes = int64_t{16} << 20, .max_depth = 16};

/// Throws unless `path` exists and, with all links followed, lies in `home`.
void require_inside(const fs::path& path, const fs::path& home, const JsonReader& file_name) {
  std::error_code failure;
  const fs::path target = fs::canonical(path, failure);
  if (failure)
    throw UsageError(format("{}: {} names {}, which cannot be opened: {}", file_name.source(),
                            quoted_for_message(file_name.path()), printable_line(path.string()),
                            failure.message()));
  const auto [end, ignored] = std::mismatch(home.begin(), home.end(), target.begin(), target.end());
  if (end != home.end())
    file_name.refuse(format("a link leads to {}, outside of the folder of {}", target.string(), kInfoFile));
}

/// The file or folder that an entry names.
fs::path resolve(const JsonReader& file_name, const fs::path& info) {
  const fs::path relative = file_name.text();
  const bool leaves =
      std::any_of(relative.begin(), relative.end(), [](const fs::path& part) { return part == ".."; });
  if (relative.empty() || relative.is_absolute() || leaves)
    file_name.refuse(format("it must be a path inside the folder of {}, without \"..\"", kInfoFile));
  if (relative.native().find('\0') != std::string::npos) file_name.refuse("it holds a NUL byte");
  const fs::path folder = info.has_parent_path() ? info.parent_path() : fs::path(".");
  const fs::path home = fs::canonical(folder);
  fs::path path = folder / relative;
  require_inside(path, home, file_name);
  if (!fs::is_directory(path)) return path;
  std::error_code failure;
  for (fs::recursive_directory_iterator entry(path, failure), end; !failure && entry != end;
       entry.increment(failure))
    require_inside(entry->path(), home, file_name);
  if (failure) throw Error(format("cannot read the folder {}: {}", path.string(), failure.message()));
  return path;
}

/// Keys of data that are not here.
void refuse_remote(const JsonReader& entry) {
  for (const std::string_view key :
       {"hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "s3_url", "cloud_file_name"}) {
    if (!entry.has(key)) continue;
    throw UsageError(format(
        "{}: {} has {} = {}: only data on this machine are read; "
        "download the files into the folder of {} and name them with \"file_name\"",
        entry.source(), quoted_for_message(entry.path()), key, json_excerpt(entry[key].json()), kInfoFile));
  }
}

/// Keys of kinds of data that are not read.
void refuse_kinds(const JsonReader& columns) {
  for (const std::string_view key : {"images", "videos", "audios"})
    if (columns.has(key))
      throw UsageError(format("{}: {} has {}: only text is read", columns.source(),
                              quoted_for_message(columns.path()), key));
}

/// The columns by our names. Where "columns" is given, optional ones that it leaves out are not read.
void read_columns(const JsonReader& columns, ChatKeys& keys) {
  columns.object().only_keys({"prompt", "query", "response", "history", "messages", "system", "tools",
                              "chosen", "rejected", "kto_tag", "images", "videos", "audios"});
  refuse_kinds(columns);
  keys.prompt = columns.text_or("prompt", keys.prompt);
  keys.response = columns.text_or("response", keys.response);
  keys.chosen = columns.text_or("chosen", keys.chosen);
  keys.rejected = columns.text_or("rejected", keys.rejected);
  keys.label = columns.text_or("kto_tag", keys.label);
  if (columns.has("messages")) keys.messages = {columns["messages"].text()};
  keys.query = columns.text_or("query", "");
  keys.history = columns.text_or("history", "");
  keys.system = columns.text_or("system", "");
  keys.tools = columns.text_or("tools", "");
}

/// `human`, `gpt` and `tool`: the words of the roles where the tags do not name them.
void read_tags(const JsonReader& tags, const char* human, const char* gpt, const char* tool, ChatKeys& keys) {
  tags.object().only_keys({"role_tag", "content_tag", "user_tag", "assistant_tag", "observation_tag",
                           "function_tag", "system_tag"});
  keys.role = tags.text_or("role_tag", keys.role);
  keys.content = tags.text_or("content_tag", keys.content);
  keys.roles = {{tags.text_or("user_tag", human), "user"},
                {tags.text_or("assistant_tag", gpt), kAssistantRole},
                {tags.text_or("observation_tag", tool), "tool"},
                {tags.text_or("function_tag", "function_call"), kCallRole},
                {tags.text_or("system_tag", "system"), "system"}};
}

ChatLayout layout_of(const JsonReader& entry) {
  const std::string formatting = entry.text_or("formatting", "alpaca");
  if (formatting != "alpaca" && formatting != "sharegpt" && formatting != "openai")
    entry["formatting"].refuse("expected \"alpaca\", \"sharegpt\" or \"openai\"");
  if (entry.boolean_or("ranking", false)) return ChatLayout::preference;
  if (entry.has("columns") && entry["columns"].has("kto_tag")) return ChatLayout::unpaired_preference;
  if (formatting == "openai") return ChatLayout::messages;
  return formatting == "alpaca" ? ChatLayout::alpaca : ChatLayout::sharegpt;
}

DatasetEntry read_entry(const JsonReader& entry, const fs::path& info) {
  refuse_remote(entry.object());
  entry.only_keys({"file_name", "file_sha1", "formatting", "ranking", "subset", "split", "folder",
                   "num_samples", "columns", "tags"});
  for (const std::string_view key : {"subset", "folder"})
    if (entry.has(key)) entry[key].refuse("files on this machine have no such part; remove it");
  if (entry.text_or("split", "train") != "train")
    entry["split"].refuse(
        "a file on this machine has one part, \"train\"; name another file for another one");
  DatasetEntry found;
  found.path = resolve(entry["file_name"], info);
  found.max_records = entry.has("num_samples") ? entry["num_samples"].integer(1) : 0;
  const ChatLayout layout = layout_of(entry);
  found.layout = layout;
  if (entry.has("columns")) read_columns(entry["columns"], found.keys);
  if (layout == ChatLayout::alpaca && entry.has("columns") && entry["columns"].has("tools"))
    entry["columns"]["tools"].refuse("records of formatting \"alpaca\" have no tools; use \"sharegpt\"");
  const bool is_openai =
      layout == ChatLayout::messages ||
      (layout == ChatLayout::unpaired_preference && entry.text_or("formatting", "alpaca") == "openai");
  if (is_openai) {
    found.keys.role = "role";
    found.keys.content = "content";
    if (entry.has("tags")) read_tags(entry["tags"], "user", "assistant", "tool", found.keys);
  } else if (entry.has("tags")) {
    read_tags(entry["tags"], "human", "gpt", "observation", found.keys);
  }
  const bool is_text =
      layout == ChatLayout::alpaca && entry.has("columns") && !entry["columns"].has("response");
  if (!is_text) return found;
  found.layout = std::nullopt;
  found.field = found.keys.prompt;
  return found;
}

}  // namespace

DatasetEntry find_dataset(const fs::path& info, const std::string& name) {
  const fs::path file = fs::is_directory(info) ? info / kInfoFile : info;
  if (!fs::exists(file))
    throw UsageError(format("{} does not exist: dataset = \"{}\" is looked up in a {} of LLaMA-Factory",
                            file.string(), name, kInfoFile));
  const Json json = read_json_file(file, kInfoLimits);
  const JsonReader reader(json, file.string());
  if (!reader.object().has(name))
    throw UsageError(
        format("{} has no data set {}; it has {}", file.string(), quoted_for_message(name), keys_of(json)));
  return read_entry(reader[name], file);
}

}  // namespace stepforge
