// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/arrow_library.h"

#include "stepforge/records/text_source.h"
#include "tests/records/test_support.h"

namespace stepforge::testing {
namespace {

TEST(ArrowLibrary, TableNamesAreThoseOfParquetAndArrow) {
  for (const char* name : {"a.parquet", "A.PARQUET", "a.arrow", "a.arrows", "a.feather"})
    EXPECT_TRUE(is_arrow_name(name)) << name;
  for (const char* name : {"a.jsonl", "parquet", "a.parquet.gz", ".parquet"})
    EXPECT_FALSE(is_arrow_name(name)) << name;
}

TEST(ArrowLibrary, ABuildWithoutItNamesTheRemedies) {
  const TempFolder folder;
  const auto refusal = [&](const std::string& library, const std::string& table) {
    return message_of<UsageError>([&] { load_arrow_library(library, table); });
  };
  const std::string missing = refusal(folder / "none.so", "data/a.parquet");
  EXPECT_CONTAINS(missing,
                  "data/a.parquet needs the reader of Parquet and Arrow files, which this build lacks (",
                  "none.so does not exist)", "`make setup build`",
                  "pandas.read_parquet(sys.argv[1]).to_json(sys.argv[1] + '.jsonl', orient='records', "
                  "lines=True)\" data/a.parquet");
  EXPECT_CONTAINS(refusal(folder / "none.so", "my \"$x\".arrow"), "pandas.read_feather(",
                  "\" 'my \"$x\".arrow'");
  EXPECT_CONTAINS(refusal(folder.write("bad.so", "not a library"), "a.arrow"), "which cannot be loaded (",
                  "bad.so");
}

TEST(ArrowLibrary, ATableIsReadInNoOtherFormat) {
  const TempFolder folder;
  for (const char* format : {"text", "jsonl", "csv", "mds"}) {
    const auto open = [&] { TextSource({.paths = {folder.write("a.parquet", "PAR1")}, .format = format}); };
    EXPECT_CONTAINS(message_of<UsageError>(open),
                    "a.parquet cannot be read as text; leave out the format of the source");
  }
}

}  // namespace
}  // namespace stepforge::testing
