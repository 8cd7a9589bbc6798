// SPDX-License-Identifier: Apache-2.0
// Truncated, corrupt and hostile files: an error that names the file, never a crash, never much memory.
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include <arrow/array.h>
#include <arrow/builder.h>
#include <arrow/io/file.h>
#include <arrow/ipc/writer.h>
#include <arrow/record_batch.h>
#include <arrow/scalar.h>
#include <arrow/type.h>
#include <arrow/util/compression.h>
#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "tests/arrow/test_support.h"
#include "tests/support/throws.h"

// libparquet loses a small object where it refuses some corrupt files.
extern "C" const char* __lsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "leak:libparquet.so";
}

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTestMemory = int64_t{4} << 20;

/// Reads all of it; the message of the error, "" if there is none.
std::string fault_of(const fs::path& path) {
  try {
    contents_of({.path = path, .max_memory = kTestMemory});
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string replaced(std::string text, const std::string& old, const std::string& now) {
  const size_t at = text.rfind(old);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, now.size(), now);
}

template <typename Number>
std::string bytes_of(std::initializer_list<Number> numbers) {
  return {reinterpret_cast<const char*>(numbers.begin()), numbers.size() * sizeof(Number)};
}

/// Writes one batch in the stream format.
fs::path write_stream(const fs::path& path, const std::shared_ptr<arrow::Array>& array,
                      const std::string& column = "text",
                      arrow::Compression::type codec = arrow::Compression::UNCOMPRESSED) {
  const auto schema = arrow::schema({arrow::field(column, array->type())});
  auto options = arrow::ipc::IpcWriteOptions::Defaults();
  options.codec = arrow::util::Codec::Create(codec).ValueOrDie();
  const auto file = arrow::io::FileOutputStream::Open(path.string()).ValueOrDie();
  const auto writer = arrow::ipc::MakeStreamWriter(file, schema, options).ValueOrDie();
  EXPECT_TRUE(writer->WriteRecordBatch(*arrow::RecordBatch::Make(schema, array->length(), {array})).ok());
  EXPECT_TRUE(writer->Close().ok() && file->Close().ok());
  return path;
}

std::shared_ptr<arrow::Array> texts(const std::vector<std::string>& values) {
  arrow::StringBuilder builder;
  EXPECT_TRUE(builder.AppendValues(values).ok());
  return builder.Finish().ValueOrDie();
}

class HostileTables : public ::testing::TestWithParam<const char*> {
 protected:
  TempFolder folder_;
  std::string bytes_ = read_file(golden(GetParam()));
};

TEST_P(HostileTables, EveryTruncatedFileIsAnErrorThatNamesIt) {
  for (size_t size = 0; size < bytes_.size(); size += 1 + size / 64)
    EXPECT_CONTAINS(fault_of(folder_.write("cut", bytes_.substr(0, size))), "cut") << size;
  EXPECT_CONTAINS(fault_of(folder_.write("cut", bytes_.substr(0, bytes_.size() - 1))), "cut");
}

TEST_P(HostileTables, ACorruptByteIsAnErrorOrAnotherValue) {
  int faults = 0;
  int count = 0;
  for (size_t at = 0; at < bytes_.size(); at += 1 + bytes_.size() / 100) {
    for (const unsigned flip : {0x01U, 0xFFU}) {
      std::string corrupt = bytes_;
      corrupt[at] = static_cast<char>(static_cast<unsigned char>(corrupt[at]) ^ flip);
      const std::string fault = fault_of(folder_.write("bad", corrupt));
      if (!fault.empty()) {
        EXPECT_CONTAINS(fault, "bad");
      }
      faults += fault.empty() ? 0 : 1;
      ++count;
    }
  }
  EXPECT_GT(faults, count / 10);
}

TEST_P(HostileTables, AFileThatShrinksWhileItIsReadIsAnError) {
  const fs::path path = folder_.write("table", bytes_);
  const auto reader = open_arrow({.path = path});
  fs::resize_file(path, 200);
  std::string text(1 << 20, ' ');
  EXPECT_CONTAINS(message_of<Error>([&] { reader->read(text); }),
                  "table became shorter while it was read: it ends at byte");
}

INSTANTIATE_TEST_SUITE_P(Files, HostileTables,
                         ::testing::Values("kinds.arrow", "kinds.parquet", "zstd.arrow", "zstd.parquet"));

TEST(HostileTable, ATextFileIsNotATable) {
  const TempFolder folder;
  EXPECT_CONTAINS(fault_of(folder.write("a.arrow", "hello")), "a.arrow: ");
  EXPECT_CONTAINS(fault_of(folder.write("a.parquet", "PAR1")), "a.parquet: ");
  EXPECT_CONTAINS(fault_of(folder.path()), "not a regular file");
}

TEST(HostileTable, AStreamWithoutItsEndMarkIsTruncated) {
  const TempFolder folder;
  const std::string bytes = read_file(golden("zstd.arrow"));
  EXPECT_CONTAINS(fault_of(folder.write("a.arrow", bytes.substr(0, bytes.size() - 8))),
                  "a.arrow after row 5: the mark at the end of the data is missing: the file is truncated");
  EXPECT_CONTAINS(fault_of(folder.write("a.arrow", bytes + "more")),
                  "bytes follow the end of the data at byte");
}

TEST(HostileTable, OffsetsOutsideOfTheTextAreRefused) {
  const TempFolder folder;
  const std::string bytes = read_file(write_stream(folder / "a.arrow", texts({"hello", "world"})));
  const std::string offsets = bytes_of<int32_t>({0, 5, 10});
  EXPECT_EQ(fault_of(folder / "a.arrow"), "");
  for (const auto& bad : {bytes_of<int32_t>({0, 5, 1 << 30}), bytes_of<int32_t>({0, 500, 10}),
                          bytes_of<int32_t>({-5, 5, 10}), bytes_of<int32_t>({0, 5, 3})})
    EXPECT_CONTAINS(fault_of(folder.write("b.arrow", replaced(bytes, offsets, bad))), "b.arrow");
}

TEST(HostileTable, IndicesOutsideOfTheDictionaryAreRefused) {
  const TempFolder folder;
  arrow::Int32Builder indices;
  EXPECT_TRUE(indices.AppendValues({1, 0, 1, 0, 1}).ok());
  const auto array =
      arrow::DictionaryArray::FromArrays(indices.Finish().ValueOrDie(), texts({"a", "b"})).ValueOrDie();
  const std::string bytes = read_file(write_stream(folder / "a.arrow", array));
  EXPECT_EQ(fault_of(folder / "a.arrow"), "");
  const std::string bad =
      replaced(bytes, bytes_of<int32_t>({1, 0, 1, 0, 1}), bytes_of<int32_t>({1, 0, 1, 99, 1}));
  EXPECT_CONTAINS(fault_of(folder.write("b.arrow", bad)), "b.arrow: row 4: column \"text\": ");
}

TEST(HostileTable, ABufferThatExpandsBeyondTheMemoryIsRefused) {
  const TempFolder folder;
  const auto array = texts({std::string(100'000, 'x')});
  const std::string bytes =
      read_file(write_stream(folder / "a.arrow", array, "text", arrow::Compression::ZSTD));
  EXPECT_EQ(fault_of(folder / "a.arrow"), "");
  const std::string stated = bytes_of<int64_t>({100'000});
  EXPECT_CONTAINS(
      fault_of(folder.write("b.arrow", replaced(bytes, stated, bytes_of<int64_t>({int64_t{1} << 40})))),
      "b.arrow: a part of it needs more than 4.0 MiB of memory");
  EXPECT_NE(fault_of(folder.write("b.arrow", replaced(bytes, stated, bytes_of<int64_t>({-5})))), "");
  EXPECT_NE(fault_of(folder.write("b.arrow", replaced(bytes, stated, bytes_of<int64_t>({99'999})))), "");
}

TEST(HostileTable, AColumnOfCountlessNullsIsRefused) {
  const TempFolder folder;
  const std::string name(100'000, 'n');  // so that the limit is met soon
  write_stream(folder / "a.arrow", std::make_shared<arrow::NullArray>(int64_t{1} << 30), name);
  EXPECT_CONTAINS(fault_of(folder / "a.arrow"), "a.arrow: expands to more than 1000 times its size");
}

TEST(HostileTable, ARowThatSharesItsValuesWithoutEndIsRefused) {
  const TempFolder folder;
  const auto entry = texts({std::string(10'000, 'x')});
  const auto indices = arrow::MakeArrayFromScalar(arrow::Int32Scalar(0), 1000).ValueOrDie();
  const auto values = arrow::DictionaryArray::FromArrays(indices, entry).ValueOrDie();
  write_stream(folder / "a.arrow", arrow::FixedSizeListArray::FromArrays(values, 1000).ValueOrDie());
  EXPECT_CONTAINS(fault_of(folder / "a.arrow"), "a.arrow: row 1: a row of more than 4.0 MiB as JSON");
}

TEST(HostileTable, TwoColumnsOfOneNameAreRefused) {
  const TempFolder folder;
  const auto twice =
      arrow::StructArray::Make({texts({"a"}), texts({"b"})}, std::vector<std::string>{"x", "x"}).ValueOrDie();
  write_stream(folder / "a.arrow", twice);
  EXPECT_CONTAINS(fault_of(folder / "a.arrow"), "a.arrow: column \"text\": column \"x\" occurs twice");
}

TEST(HostileTable, TypesWithoutAFormInJsonAreRefused) {
  const TempFolder folder;
  const auto refusal = [&](const std::shared_ptr<arrow::DataType>& type) {
    return fault_of(write_stream(folder / "a.arrow", arrow::MakeArrayOfNull(type, 1).ValueOrDie()));
  };
  for (const auto& type :
       {arrow::binary(), arrow::large_binary(), arrow::fixed_size_binary(3),
        arrow::duration(arrow::TimeUnit::SECOND), arrow::month_interval(), arrow::list_view(arrow::utf8()),
        arrow::list(arrow::binary()), arrow::map(arrow::utf8(), arrow::binary()),
        arrow::run_end_encoded(arrow::int32(), arrow::utf8())})
    EXPECT_CONTAINS(refusal(type), "a.arrow: column \"text\" is of type ", "which has no form in JSON")
        << type->ToString();
  EXPECT_CONTAINS(refusal(arrow::map(arrow::int32(), arrow::utf8())),
                  "only maps with texts as keys have a form in JSON");
}

}  // namespace
}  // namespace stepforge::testing
