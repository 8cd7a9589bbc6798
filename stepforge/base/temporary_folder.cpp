// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/temporary_folder.h"

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

TemporaryFolder::TemporaryFolder(std::string_view purpose) {
  std::string name =
      (std::filesystem::temp_directory_path() / format("stepforge-{}-XXXXXX", purpose)).string();
  if (mkdtemp(name.data()) == nullptr)
    throw Error(format("cannot make the folder {}: {}", name, std::generic_category().message(errno)));
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace stepforge
