// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/npy.h"

#include <gtest/gtest.h>

#include "tests/data/test_support.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

using Numbers = std::vector<int64_t>;

std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string npy(const std::string& header, const Numbers& values, int version = 1) {
  std::string text = "\x93NUMPY";
  text += static_cast<char>(version);
  text += '\0';
  text += little_endian(header.size(), version == 1 ? 2 : 4) + header;
  for (const int64_t value : values) text += little_endian(static_cast<uint64_t>(value), 8);
  return text;
}

std::string header_of(const std::string& shape) {
  return "{'descr': '<i8', 'fortran_order': False, 'shape': " + shape + ", }\n";
}

class Npy : public ::testing::Test {
 protected:
  NpyArray read(const std::string& bytes) const { return read_npy(folder_.write("a.npy", bytes)); }
  std::string refusal(const std::string& bytes) const {
    return message_of<FormatError>([&] { read(bytes); });
  }

  TempFolder folder_;
};

TEST_F(Npy, ReadsBothVersions) {
  for (const int version : {1, 2}) {
    const NpyArray array = read(npy(header_of("(2, 3)"), {1, -2, 3, INT64_MIN, 5, INT64_MAX}, version));
    EXPECT_EQ(array.shape, (Numbers{2, 3}));
    EXPECT_EQ(array.values, (Numbers{1, -2, 3, INT64_MIN, 5, INT64_MAX}));
  }
  EXPECT_EQ(read(npy(header_of("(2,)"), {7, 8})).values, (Numbers{7, 8}));
  EXPECT_EQ(read(npy(header_of("(0, 6)"), {})).values, Numbers{});
  EXPECT_EQ(read(npy("{\"shape\":(1,),\"fortran_order\":False,\"descr\":\"<i8\"}", {7})).values, Numbers{7});
}

TEST_F(Npy, ReadsWhatNumPyHasWritten) {
  const auto corpus = source_dir() / "tests/fuzz/corpus/npy_fuzz";
  EXPECT_EQ(read_npy(corpus / "boundaries.npy").values, (Numbers{0, 2, 3}));
  EXPECT_EQ(read_npy(corpus / "samples.npy").shape, (Numbers{3, 6}));
  EXPECT_EQ(read_npy(corpus / "second_version.npy").shape, (Numbers{0, 6}));
}

TEST_F(Npy, WritesWhatNumPyWrites) {
  write_npy(folder_ / "b.npy", Numbers{2, 1}, Numbers{7, 8});
  const std::string bytes = read_file(folder_ / "b.npy");
  EXPECT_EQ(bytes.size(), 128U + 16);
  EXPECT_EQ(bytes.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  EXPECT_EQ(bytes[127], '\n');
  EXPECT_EQ(read_npy(folder_ / "b.npy").values, (Numbers{7, 8}));
}

TEST_F(Npy, RefusesEveryTruncation) {
  const std::string whole = npy(header_of("(2, 3)"), {1, 2, 3, 4, 5, 6});
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_CONTAINS(refusal(whole.substr(0, size)), "a.npy: byte ");
  EXPECT_CONTAINS(refusal(whole + "x"), "the shape (2, 3) does not match the 49 bytes that follow");
}

TEST_F(Npy, RefusesHugeCounts) {
  const auto shape = [&](const std::string& text) { return refusal(npy(header_of(text), {1})); };
  EXPECT_CONTAINS(shape("(9223372036854775807,)"), "the shape (9223372036854775807) does not match");
  EXPECT_CONTAINS(shape("(9223372036854775808,)"), "expected a length from 0 to 2^63 - 1");
  EXPECT_CONTAINS(shape("(4294967296, 4294967296)"), "does not match the 8 bytes");
  EXPECT_CONTAINS(shape("(2305843009213693953,)"), "does not match the 8 bytes");
  EXPECT_CONTAINS(shape("(-1,)"), "expected a length");
  EXPECT_CONTAINS(refusal("\x93NUMPY\x02" + std::string(1, '\0') + "\xFF\xFF\xFF\xFF"),
                  "the header of 4294967295 bytes exceeds the file or 4096 bytes");
}

TEST_F(Npy, RefusesOtherArrays) {
  const auto header = [&](const std::string& text) { return refusal(npy(text, {1})); };
  EXPECT_CONTAINS(header("{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}"),
                  "values of type \"<f8\"; expected \"<i8\"");
  EXPECT_CONTAINS(header("{'descr': '>i8', 'fortran_order': False, 'shape': (1,)}"), "\">i8\"");
  EXPECT_CONTAINS(header("{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (1,)}"), "expected");
  EXPECT_CONTAINS(header("{'descr': '<i8', 'fortran_order': True, 'shape': (1,)}"), "C order");
  EXPECT_CONTAINS(header("{'descr': '<i8', 'fortran_order': False}"), "the header has no \"shape\"");
  EXPECT_CONTAINS(header("{'descr': '<i8', 'shape': (1,)}"), "the header has no \"fortran_order\"");
  EXPECT_CONTAINS(header("{'fortran_order': False, 'shape': (1,)}"), "the header has no \"descr\"");
  EXPECT_CONTAINS(header("{'descr': '<i8', 'order': 'C'}"), "unknown member \"order\"");
  EXPECT_CONTAINS(header("{'descr': '<i8"), "this text does not end");
  EXPECT_CONTAINS(header(header_of("(1 1)")), "expected \",\" or \")\"");
  EXPECT_CONTAINS(header(header_of("(1,)") + "x"), "more follows after the header");
  EXPECT_CONTAINS(refusal(npy(header_of("(1,)"), {1}, 3)), "version 3.0 is not supported");
  EXPECT_CONTAINS(refusal("PK\x03\x04"), "not a .npy file");
}

}  // namespace
}  // namespace stepforge::testing
