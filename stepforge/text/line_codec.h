// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding of streams for the command line: plain text, or JSON Lines.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "stepforge/text/tokenizer.h"

namespace stepforge {

/// The longest line, and the longest text of encode_plain: endless input must not take all memory.
inline constexpr int64_t kMaxCodecBytes = int64_t{128} << 20;

struct CodecInput {
  std::istream& stream;
  std::string name;  // for error texts
  int64_t max_bytes = kMaxCodecBytes;
};

// All throw FormatError naming the input, and the line or word, for malformed input or a line beyond max_bytes, and
// Error if `output` cannot be written.

/// The whole input is one text; ids go out separated by spaces, ended by a line break.
void encode_plain(const Tokenizer& tokenizer, const CodecInput& input, std::ostream& output);

/// One JSON string a line in, one JSON array of ids a line out: "[1,2,3]". Empty lines are errors.
void encode_jsonl(const Tokenizer& tokenizer, const CodecInput& input, std::ostream& output);

/// Ids separated by whitespace in, exactly their bytes out.
void decode_plain(const Tokenizer& tokenizer, const CodecInput& input, std::ostream& output);

/// One JSON array of ids a line in, one JSON string a line out. Bytes that are not UTF-8 become U+FFFD:
/// JSON holds nothing else.
void decode_jsonl(const Tokenizer& tokenizer, const CodecInput& input, std::ostream& output);

}  // namespace stepforge
