// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/line_codec.h"

#include <sstream>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/support/throws.h"
#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

using Codec = void (*)(const Tokenizer&, const CodecInput&, std::ostream&);

std::string run(Codec codec, const std::string& input) {
  const auto tokenizer = tokenizer_of(good_definition());
  std::istringstream in(input);
  std::ostringstream out;
  codec(*tokenizer, {in, "stdin"}, out);
  return out.str();
}

TEST(LineCodec, PlainEncodesTheWholeInputAsOneText) {
  EXPECT_EQ(run(encode_plain, "abc\nabc"), "257 10 257\n");
  EXPECT_EQ(run(encode_plain, ""), "\n");
}

TEST(LineCodec, PlainDecodesToExactlyTheBytes) {
  EXPECT_EQ(run(decode_plain, "257 10\n 257\t255"), "abc\nabc\xFF");
}

TEST(LineCodec, JsonLinesEncodeOneArrayForEachString) {
  EXPECT_EQ(run(encode_jsonl, "\"abc\"\n\"\"\n\"a\\nb\"\n\"\\u00e9\""), "[257]\n[]\n[97,10,98]\n[195,169]\n");
}

TEST(LineCodec, JsonLinesDecodeOneStringForEachArray) {
  EXPECT_EQ(run(decode_jsonl, "[257, 10]\n[]\n[195,169]\n[255]\n"),
            "\"abc\\n\"\n\"\"\n\"\u00E9\"\n\"\uFFFD\"\n");
}

TEST(LineCodec, ABadLineIsNamedByItsNumber) {
  EXPECT_CONTAINS(message_of<FormatError>([&] { return run(encode_jsonl, "\"a\"\n\"b\n"); }), "stdin:2");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return run(encode_jsonl, "\"a\"\n\n\"b\"\n"); }), "stdin:2");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return run(encode_jsonl, "[1]\n"); }), "stdin:1", "string");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return run(encode_jsonl, "\"\\ud800\"\n"); }), "stdin:1");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return run(encode_jsonl, "\"\xFF\"\n"); }), "stdin:1");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return run(decode_jsonl, "[1]\n{}\n"); }), "stdin:2",
                  "array");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return run(decode_jsonl, "[1]\n[1.5]\n"); }), "stdin:2",
                  "1.5");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return run(decode_jsonl, "[99999999999]\n"); }), "stdin:1",
                  "99999999999");
  EXPECT_CONTAINS(message_of<Error>([&] { return run(decode_jsonl, "[1]\n[5000]\n"); }), "stdin:2", "5000");
}

TEST(LineCodec, RefusesPlainInputThatIsNotUtf8OrNotIds) {
  EXPECT_CONTAINS(message_of<FormatError>([&] { return run(encode_plain, "ab\xFF"); }), "stdin", "byte 2");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return run(decode_plain, "1 2 x3"); }), "stdin", "word 3",
                  "x3");
  EXPECT_CONTAINS(message_of<Error>([&] { return run(decode_plain, "1 5000"); }), "stdin", "word 2", "5000");
}

/// An endless stream of one byte.
class Endless : public std::streambuf {
 public:
  explicit Endless(char byte) : bytes_(4096, byte) {}

 private:
  int_type underflow() override {
    setg(bytes_.data(), bytes_.data(), bytes_.data() + bytes_.size());
    return traits_type::to_int_type(bytes_[0]);
  }
  std::string bytes_;
};

TEST(LineCodec, AnEndlessLineIsRefusedAtTheLimit) {
  const auto tokenizer = tokenizer_of(good_definition());
  for (const Codec codec : {encode_plain, encode_jsonl, decode_plain, decode_jsonl}) {
    Endless zeros('\0');
    std::istream in(&zeros);
    std::ostringstream out;
    EXPECT_CONTAINS(
        message_of<FormatError>([&] { return codec(*tokenizer, {in, "/dev/zero", 100'000}, out); }),
        "/dev/zero", "more than 100000 bytes");
  }
}

TEST(LineCodec, ALineMayHave128MebibytesByDefault) {
  std::istringstream in;
  EXPECT_EQ((CodecInput{in, "stdin"}.max_bytes), int64_t{128} << 20);
}

TEST(LineCodec, AFailingOutputIsAnError) {
  const auto tokenizer = tokenizer_of(good_definition());
  std::istringstream in("abc");
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  EXPECT_CONTAINS(message_of<Error>([&] { return encode_plain(*tokenizer, {in, "stdin"}, out); }), "output");
}

TEST(LineCodec, SpecialTokensStandAroundEachTextOnRequest) {
  const auto tokenizer = load_tokenizer(golden_folder("llama3_like"));
  std::istringstream lines("\"a\"\n\"\"\n");
  std::ostringstream output;
  encode_jsonl(*tokenizer, {.stream = lines, .name = "in", .add_special_tokens = true}, output);
  EXPECT_EQ(output.str(), "[481,64]\n[481]\n");
  std::istringstream text("a");
  output.str("");
  encode_plain(*tokenizer, {.stream = text, .name = "in", .add_special_tokens = true}, output);
  EXPECT_EQ(output.str(), "481 64\n");
}

}  // namespace
}  // namespace stepforge::testing
