// SPDX-License-Identifier: Apache-2.0
#include "tests/tensorfile/hostile_files.h"

#include <functional>

#include "stepforge/base/format.h"
#include "tests/tensorfile/build_file.h"

namespace stepforge::testing {
namespace {

/// A file of one tensor "a" with the given fields.
std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets, size_t data = 16) {
  return build_file(format(R"({{"a":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets),
                    data);
}

std::string f32(std::string_view shape, std::string_view offsets, size_t data = 16) {
  return one("\"F32\"", shape, offsets, data);
}

/// A member of the header: a U8 tensor with the given span.
std::string u8(std::string_view name, int begin, int end) {
  return format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", name, end - begin, begin,
                end);
}

std::string repeated(std::string_view part, size_t times) {
  std::string text;
  for (size_t i = 0; i < times; ++i) text += part;
  return text;
}

const std::string kGood = "{" + u8("a", 0, 4) + "}";

void add_length_faults(std::vector<HostileFile>& files) {
  const std::string good = build_file(kGood, 4);
  const std::string field = "byte 0: field header length: ";
  files.push_back({"EmptyFile", "", field + "the file holds 0 bytes"});
  files.push_back({"SevenBytes", "\1\0\0\0\0\0\0", field + "the file holds "});
  files.push_back({"LengthZero", with_length(good, 0), field + "0 means that there is no header"});
  files.push_back(
      {"LengthBeyondFile", with_length(good, good.size() - 7), field + "58 is more than the 57 bytes"});
  files.push_back({"LengthOnly", std::string("\2\0\0\0\0\0\0\0", 8), field + "2 is more than the 0 bytes"});
  files.push_back(
      {"LengthWrapsWhenEightIsAdded", with_length(good, ~uint64_t{0} - 7), field + "18446744073709551608"});
  files.push_back({"LengthAllOnes", with_length(good, ~uint64_t{0}), field + "18446744073709551615"});
  files.push_back(
      {"LengthIsNegativeIfSigned", with_length(good, uint64_t{1} << 63), field + "9223372036854775808"});
  files.push_back(
      {"LengthOver100Megabytes", with_length(good, 100'000'001), "more than the 100000000 bytes accepted"});
  files.push_back(
      {"LengthCutTo32Bits", with_length(good, (uint64_t{1} << 32) + kGood.size()), field + "4294967"});
  files.push_back({"LengthCutsTheHeader", with_length(good, 20), "byte 27: tensor \"a\": the string"});
  files.push_back({"LengthTakesSomeOfTheData", with_length(build_file(kGood, 6), kGood.size() + 2),
                   "only spaces may follow"});
}

void add_shape_faults(std::vector<HostileFile>& files) {
  const auto add = [&files](std::string name, std::string bytes, std::string message) {
    files.push_back({std::move(name), std::move(bytes), "tensor \"a\": field \"" + message});
  };
  add("ShapeLargerThanSpan", f32("[1000000]", "[0,16]"),
      "data_offsets\": span of 16 bytes, but shape [1000000]");
  add("ShapeSmallerThanSpan", f32("[1]", "[0,16]"),
      "data_offsets\": span of 16 bytes, but shape [1] of F32 needs 4");
  add("WrongElementSize", one("\"F64\"", "[4]", "[0,16]"),
      "data_offsets\": span of 16 bytes, but shape [4] of F64");
  add("ScalarOfTwoElements", f32("[]", "[0,8]", 8),
      "data_offsets\": span of 8 bytes, but shape [] of F32 needs 4");
  add("ProductWrapsToZero", f32("[4294967296,4294967296]", "[0,0]", 0), "shape\": the size of [4294967296");
  add("BytesWrapToZero", f32("[4611686018427387904]", "[0,0]", 0),
      "shape\": the size of [4611686018427387904]");
  add("BytesWrapToTheSpan", f32("[4611686018427387908]", "[0,16]"),
      "shape\": the size of [4611686018427387908]");
  add("ProductWrapsTheSign", one("\"U8\"", "[4294967296,2147483648]", "[0,0]", 0), "shape\": the size of");
  add("ZeroHidesAnOverflow", f32("[0,4294967296,4294967296]", "[0,0]", 0),
      "shape\": the size of [0, 4294967296");
  add("ProductCutTo32BitsIsZero", f32("[65536,65536]", "[0,0]", 0),
      "data_offsets\": span of 0 bytes, but shape");
  add("EmptyShapeWithBytes", f32("[0]", "[0,16]"),
      "data_offsets\": span of 16 bytes, but shape [0] of F32 needs 0");
  add("NegativeDimension", f32("[-4]", "[0,16]"), "shape\": a negative number");
  add("TwoNegativeDimensions", f32("[-2,-2]", "[0,16]"), "shape\": a negative number");
  add("NegativeZero", f32("[-0]", "[0,0]", 0), "shape\": a negative number");
  add("FloatDimension", f32("[4.0]", "[0,16]"), "shape\": not an integer written in digits");
  add("ScientificDimension", f32("[4e0]", "[0,16]"), "shape\": not an integer written in digits");
  add("LeadingZero", f32("[04]", "[0,16]"), "shape\": a number with leading zeros");
  add("HexDimension", f32("[0x4]", "[0,16]"), "shape\": expected ']', found \"x\"");
  add("DimensionOf2To63", f32("[9223372036854775808]", "[0,16]"), "shape\": a number of 2^63 or more");
  add("DimensionOf2To64", f32("[18446744073709551616]", "[0,16]"), "shape\": a number of 2^63 or more");
  add("DimensionOf10000Digits", f32("[" + std::string(10000, '9') + "]", "[0,16]"),
      "shape\": a number of 2^63");
  add("DimensionIsText", f32("[\"4\"]", "[0,16]"), "shape\": not a number");
  add("DimensionIsNull", f32("[null]", "[0,16]"), "shape\": not a number");
  add("DimensionIsTrue", f32("[true]", "[0,16]"), "shape\": not a number");
  add("DimensionIsNan", f32("[NaN]", "[0,16]"), "shape\": not a number");
  add("DimensionIsNested", f32("[[4]]", "[0,16]"), "shape\": not a number");
  add("ShapeIsANumber", f32("4", "[0,16]"), "shape\": expected '[', found \"4\"");
  add("ShapeIsAnObject", f32("{}", "[0,16]"), "shape\": expected '[', found \"{\"");
  add("ShapeHasATrailingComma", f32("[4,]", "[0,16]"), "shape\": not a number");
  add("TooManyDimensions", f32("[1" + repeated(",1", 32) + "]", "[0,4]", 4),
      "shape\": more than 32 dimensions");
  add("DeeplyNestedShape", f32(std::string(500'000, '['), "[0,16]"), "shape\": not a number");
}

void add_offset_faults(std::vector<HostileFile>& files) {
  const auto add = [&files](std::string name, std::string bytes, std::string message) {
    files.push_back({std::move(name), std::move(bytes), "field \"data_offsets\": " + message});
  };
  add("OffsetsReversed", f32("[4]", "[16,0]"), "begin 16 is after end 0");
  add("OffsetsBeyondTheFile", f32("[8]", "[0,32]"), "end 32 is beyond the 16 bytes of data");
  add("OffsetsFarBeyondTheFile", f32("[1099511627776]", "[0,4398046511104]"), "end 4398046511104 is beyond");
  add("TruncatedByOneByte", f32("[4]", "[0,16]", 15), "end 16 is beyond the 15 bytes of data");
  add("OffsetsOver2To63", f32("[4]", "[18446744073709551600,18446744073709551615]"),
      "a number of 2^63 or more");
  add("OffsetsWrapTo16", f32("[4]", "[0,18446744073709551632]"), "a number of 2^63 or more");
  add("EndOf2To63Minus1", f32("[4]", "[9223372036854775791,9223372036854775807]"),
      "end 9223372036854775807 is beyond");
  add("NegativeOffset", f32("[4]", "[-16,0]"), "a negative number");
  add("FloatOffset", f32("[4]", "[0,16.0]"), "not an integer written in digits");
  add("ScientificOffset", f32("[4]", "[0,1.6e1]"), "not an integer written in digits");
  add("OffsetIsText", f32("[4]", "[0,\"16\"]"), "not a number");
  add("OneOffset", f32("[4]", "[16]"), "expected ',', found \"]\"");
  add("ThreeOffsets", f32("[4]", "[0,16,16]"), "expected ']', found \",\"");
  add("NoOffsets", f32("[4]", "[]"), "not a number");
  add("HoleAtTheStart", build_file("{" + u8("a", 4, 8) + "}", 8),
      "begins at 4, but the tensor before it ends at 0: hole");
  add("HoleInTheMiddle", build_file("{" + u8("a", 0, 4) + "," + u8("b", 8, 12) + "}", 12),
      "begins at 8, but");
  add("Overlap", build_file("{" + u8("a", 0, 8) + "," + u8("b", 4, 12) + "}", 12),
      "begins at 4, inside the tensor");
  add("SameSpanTwice", build_file("{" + u8("a", 0, 8) + "," + u8("b", 0, 8) + "}", 8),
      "begins at 0, inside the tensor");
  add("OneInsideTheOther", build_file("{" + u8("a", 0, 8) + "," + u8("b", 2, 4) + "}", 8),
      "begins at 2, inside");
  add("EmptyTensorInsideAnother", build_file("{" + u8("a", 0, 8) + "," + u8("b", 4, 4) + "}", 8),
      "begins at 4, inside");
}

void add_entry_faults(std::vector<HostileFile>& files) {
  const auto add = [&files](std::string name, std::string header, std::string message, size_t data = 16) {
    files.push_back({std::move(name), build_file(header, data), std::move(message)});
  };
  const std::string types = "field \"dtype\": unknown element type ";
  files.push_back({"UnknownType", one("\"F33\"", "[4]", "[0,16]"), types + "\"F33\""});
  files.push_back({"LowerCaseType", one("\"f32\"", "[4]", "[0,16]"), types + "\"f32\""});
  files.push_back({"EmptyType", one("\"\"", "[4]", "[0,16]"), types + "\"\""});
  files.push_back(
      {"TypeWithNul", one("\"F32\\u0000\"", "[4]", "[0,16]"), "field \"dtype\": NUL in a string"});
  files.push_back(
      {"TypeIsNumber", one("32", "[4]", "[0,16]"), "field \"dtype\": expected '\"', found \"3\""});
  files.push_back({"TypeOf100000Letters", one("\"" + std::string(100'000, 'F') + "\"", "[4]", "[0,16]"),
                   "field \"dtype\": the string that starts here is longer than 64 bytes"});
  add("MissingType", R"({"a":{"shape":[4],"data_offsets":[0,4]}})",
      "byte 9: tensor \"a\": field \"dtype\": missing");
  add("MissingShape", R"({"a":{"dtype":"U8","data_offsets":[0,4]}})",
      "tensor \"a\": field \"shape\": missing");
  add("MissingOffsets", R"({"a":{"dtype":"U8","shape":[4]}})",
      "tensor \"a\": field \"data_offsets\": missing");
  add("EmptyEntry", R"({"a":{}})", "tensor \"a\": field \"dtype\": missing");
  add("UnknownField", R"({"a":{"dtype":"U8","evil":1,"shape":[4],"data_offsets":[0,4]}})",
      "byte 27: tensor \"a\": field \"evil\": unknown field");
  add("FieldTwice", R"({"a":{"dtype":"U8","shape":[4],"shape":[16],"data_offsets":[0,16]}})",
      "byte 39: tensor \"a\": field \"shape\": given twice");
  add("FieldTwiceByEscape", R"({"a":{"dtype":"U8","shape":[4],"sh\u0061pe":[16],"data_offsets":[0,16]}})",
      "field \"shape\": given twice");
  add("EntryIsNull", R"({"a":null})", "byte 13: tensor \"a\": expected '{', found \"n\"");
  add("EntryIsAList", R"({"a":["U8",[4],[0,4]]})", "byte 13: tensor \"a\": expected '{', found \"[\"");
  add("DuplicateName", "{" + u8("a", 0, 4) + "," + u8("a", 4, 8) + "}",
      "byte 61: tensor \"a\": duplicate tensor name", 8);
  add("DuplicateNameByEscape", "{" + u8("a", 0, 4) + "," + u8("\\u0061", 4, 8) + "}", "duplicate tensor name",
      8);
  add("DuplicateNameFarApart", "{" + u8("x", 0, 4) + "," + u8("b", 4, 8) + "," + u8("x", 8, 12) + "}",
      "tensor \"x\": duplicate tensor name", 12);
  add("EmptyName", "{" + u8("", 0, 4) + "}", "byte 9: empty tensor name", 4);
  add("NulInAName", "{" + u8("a\\u0000b", 0, 4) + "}", "NUL in a string", 4);
  add("EscapeSequenceInAName", "{" + u8("a\\u001b[2J", 0, 4) + "}", "byte 9: control byte in the tensor name",
      4);
  add("NewlineInAName", "{" + u8("a\\nb", 0, 4) + "}", "byte 9: control byte in the tensor name", 4);
  add("DeleteInAName", "{" + u8("a\x7f", 0, 4) + "}", "byte 9: control byte in the tensor name", 4);
  add("LongName", "{" + u8(std::string(2000, 'n'), 0, 4) + "}",
      "byte 9: the string that starts here is longer", 4);
  add("MegabyteName", "{" + u8(std::string(1'000'000, 'n'), 0, 4) + "}",
      "byte 9: the string that starts here", 4);
}

void add_json_faults(std::vector<HostileFile>& files) {
  const auto add = [&files](std::string name, std::string header, std::string message, size_t data = 0) {
    files.push_back({std::move(name), build_file(header, data), std::move(message)});
  };
  add("HeaderOfSpaces", "        ", "byte 8: the header does not start with '{'");
  add("SpaceBeforeTheBrace", " {}", "byte 8: the header does not start with '{'");
  add("ByteOrderMark", "\xEF\xBB\xBF{}", "byte 8: the header does not start with '{'");
  add("HeaderIsAList", "[]", "byte 8: the header does not start with '{'");
  add("HeaderIsNull", "null", "byte 8: the header does not start with '{'");
  add("HeaderUnclosed", "{", "byte 9: expected '\"', but the text ends");
  add("HeaderUnclosedAfterTensor", "{" + u8("a", 0, 4), "expected '}', but the text ends", 4);
  add("TrailingComma", "{" + u8("a", 0, 4) + ",}", "expected '\"', found \"}\"", 4);
  add("SecondDocument", "{}{}", "byte 10: only spaces may follow");
  add("TextAfterTheHeader", "{}   <script>", "byte 13: only spaces may follow");
  add("NulPadding", std::string("{}\0\0\0\0\0\0", 8), "byte 10: only spaces may follow");
  add("NewlinePadding", "{}\n", "byte 10: only spaces may follow");
  add("Comment", "{/*x*/}", "byte 9: expected '\"', found \"/\"");
  add("SingleQuotes", "{'a':1}", "byte 9: expected '\"', found \"'\"");
  add("MissingColon", "{\"a\" {}}", "byte 13: expected ':', found \"{\"");
  add("DeepNesting", repeated("{\"a\":", 200'000), "field \"a\": unknown field");
  add("DeepLists", "{\"a\":" + std::string(1'000'000, '['),
      "byte 13: tensor \"a\": expected '{', found \"[\"");
  add("UnclosedString", "{\"abc", "byte 9: the string that starts here has no end");
  add("RawNulInAString", std::string("{\"a\0b\":1}", 9), "byte 11: control byte in a string");
  add("RawNewlineInAString", "{\"a\nb\":1}", "byte 11: control byte in a string");
  add("UnknownEscape", "{\"\\x41\":1}", "byte 11: unknown escape");
  add("EscapeAtTheEnd", "{\"a\\", "byte 12: the text ends inside an escape");
  add("ShortUnicodeEscape", "{\"\\u12", "byte 12: invalid \\u escape");
  add("BadUnicodeEscape", "{\"\\u12g4\":1}", "byte 14: invalid \\u escape");
  add("LoneHighSurrogate", "{\"\\ud800\":1}", "lone surrogate");
  add("LoneLowSurrogate", "{\"\\udc00\":1}", "lone surrogate");
  add("HighSurrogateTwice", "{\"\\ud800\\ud800\":1}", "lone surrogate");
  add("BadUtf8Byte", "{\"a\xff\":1}", "byte 11: invalid UTF-8");
  add("LoneContinuation", "{\"a\x80\":1}", "byte 11: invalid UTF-8");
  add("OverlongSlash", "{\"\xc0\xaf\":1}", "byte 10: invalid UTF-8");
  add("OverlongThreeBytes", "{\"\xe0\x80\xaf\":1}", "byte 10: invalid UTF-8");
  add("EncodedSurrogate", "{\"\xed\xa0\x80\":1}", "byte 10: invalid UTF-8");
  add("BeyondUnicode", "{\"\xf4\x90\x80\x80\":1}", "byte 10: invalid UTF-8");
  add("Utf8CutAtTheEnd", "{\"\xe2\x82", "byte 10: invalid UTF-8");
}

void add_metadata_faults(std::vector<HostileFile>& files) {
  const auto add = [&files](std::string name, std::string header, std::string message) {
    files.push_back({std::move(name), build_file(header), std::move(message)});
  };
  const std::string value = "field \"__metadata__\": a value is not a string";
  add("MetadataNumber", R"({"__metadata__":{"step":1}})", "byte 32: " + value);
  add("MetadataObject", R"({"__metadata__":{"a":{"b":"c"}}})", value);
  add("MetadataNull", R"({"__metadata__":{"a":null}})", value);
  add("MetadataIsNull", R"({"__metadata__":null})", "field \"__metadata__\": expected '{', found \"n\"");
  add("MetadataIsAList", R"({"__metadata__":["a"]})", "field \"__metadata__\": expected '{', found \"[\"");
  add("MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})",
      "byte 27: field \"__metadata__\": given twice");
  add("MetadataKeyTwice", R"({"__metadata__":{"a":"1","b":"2","a":"3"}})",
      "\"__metadata__\": duplicate key \"a\"");
  add("MetadataWithNul", R"({"__metadata__":{"a":"x\u0000y"}})", "field \"__metadata__\": NUL in a string");
  add("MetadataBadUtf8", "{\"__metadata__\":{\"a\":\"\xff\"}}", "field \"__metadata__\": invalid UTF-8");
}

void add_whole_file_faults(std::vector<HostileFile>& files) {
  const std::string good = build_file(kGood, 4);
  const std::string end = format("byte {}: ", good.size());
  files.push_back({"TrailingByte", good + "x", end + "1 bytes that belong to no tensor"});
  files.push_back(
      {"ZipAppended", good + "PK\5\6" + std::string(18, '\0'), end + "22 bytes that belong to no tensor"});
  files.push_back({"DataWithoutTensors", build_file("{}", 8), "byte 10: 8 bytes that belong to no tensor"});
  files.push_back(
      {"PickleInstead", "\x80\x04\x95\x1b" + std::string(60, 'x'), "byte 0: field header length: "});
  files.push_back({"ZipInstead", "PK\3\4" + std::string(60, '\0'), "byte 0: field header length: "});
  std::string bloat = "{";
  for (int i = 0; i < 100'000; ++i) bloat += format("\"{}\":{{}},", i);
  files.push_back({"ManyEmptyEntries", build_file(bloat + "}"), "tensor \"0\": field \"dtype\": missing"});
  std::string many = "{";
  for (int i = 0; i < 20'000; ++i) many += u8(format("{}", i), 0, 0) + (i + 1 < 20'000 ? "," : "}");
  files.push_back({"ManyTinyTensorsThenAByte", build_file(many, 1), "1 bytes that belong to no tensor"});
  std::string keys = "{\"__metadata__\":{";
  for (int i = 0; i < 20'000; ++i) keys += format("\"{:x}\":\"\",", i);
  files.push_back({"ManyTinyMetadata", build_file(keys + "\"1\":\"\"}}"), "duplicate key \"1\""});
  const std::string ones = "[1" + repeated(",1", 31) + "]";
  std::string ranks = "{";
  for (int i = 0; i < 10'000; ++i) {
    ranks += format(R"({}"{:x}":{{"dtype":"U8","shape":{},"data_offsets":[{},{}]}})", i == 0 ? "" : ",", i,
                    ones, i, i + 1);
  }
  files.push_back(
      {"ManyDimensionsThenAByte", build_file(ranks + "}", 10'001), "1 bytes that belong to no tensor"});
  const std::string colons = "{\"__metadata__\":{\"a\":\"" + std::string(200'000, ':') + "\"}}";
  files.push_back({"ManyColonsThenAByte", build_file(colons, 1), "1 bytes that belong to no tensor"});
}

}  // namespace

std::vector<HostileFile> hostile_files() {
  std::vector<HostileFile> files;
  add_length_faults(files);
  add_shape_faults(files);
  add_offset_faults(files);
  add_entry_faults(files);
  add_json_faults(files);
  add_metadata_faults(files);
  add_whole_file_faults(files);
  return files;
}

}  // namespace stepforge::testing
