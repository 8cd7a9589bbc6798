// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/arrow_library.h"

#include <dlfcn.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/installation.h"
#include "stepforge/base/shell_word.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

std::unique_ptr<ContentReader> open_table(const TextFile& file, const std::optional<std::string>& column) {
  return open_arrow({.path = file.path, .column = column});
}

void require_library(const fs::path& file) {
  load_arrow_library(arrow_library_path(), file);
}

}  // namespace

constexpr FileFormat kArrowFormat{.name = "arrow",
                                  .option = "",
                                  .extensions = ".parquet .arrow .arrows .feather",
                                  .read = read_table_rows,
                                  .open = open_table,
                                  .seeks = true,
                                  .require = require_library};

bool is_arrow_name(const fs::path& path) {
  return kArrowFormat.names(path);
}

ArrowEntry load_arrow_library(const fs::path& library, const fs::path& path) {
  const auto refuse = [&](const std::string& reason) {
    throw UsageError(
        format("{} needs the reader of Parquet and Arrow files, {}. `make setup build` builds it with the "
               "libraries of pyarrow. Or convert the file to JSON Lines: python3 -c \"import pandas, sys; "
               "pandas.{}(sys.argv[1]).to_json(sys.argv[1] + '.jsonl', orient='records', lines=True)\" {}",
               path.string(), reason, lower_extension(path) == ".parquet" ? "read_parquet" : "read_feather",
               shell_word(path.native())));
  };
  if (!fs::exists(library)) refuse(format("which this build lacks ({} does not exist)", library.string()));
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = handle != nullptr ? dlsym(handle, kArrowEntryName) : nullptr;
  if (symbol == nullptr) refuse(format("which cannot be loaded ({})", dlerror()));
  return reinterpret_cast<ArrowEntry>(symbol);
}

fs::path arrow_library_path() {
  return library_folder() / "libstepforge_arrow.so";
}

std::unique_ptr<ContentReader> open_arrow(const ArrowRequest& request) {
  return std::unique_ptr<ContentReader>(load_arrow_library(arrow_library_path(), request.path)(request));
}

}  // namespace stepforge
