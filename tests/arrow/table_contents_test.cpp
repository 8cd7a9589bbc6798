// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "stepforge/data/table_reader.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

TEST(TableContents, Hello) {
  const auto reader = open_table({"/tmp/sf/hello.parquet", std::nullopt});
  std::string text(10000, ' ');
  text.resize(static_cast<size_t>(reader->read(text)));
  std::puts(text.c_str());
}

}  // namespace
}  // namespace stepforge::testing
