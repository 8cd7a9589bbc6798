// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes streams for the command line: plain text or JSON Lines.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "stepforge/text/tokenizer.h"

namespace stepforge {

/// Limit for a line, and for the text of encode_plain, so that endless input does not use up the memory.
inline constexpr int64_t kMaxCodecBytes = int64_t{128} << 20;

struct CodecInput {
  std::istream& stream;
  std::string name;  // for error texts
  int64_t max_bytes = kMaxCodecBytes;
  bool add_special_tokens = false;   ///< encode each text between Tokenizer::special_tokens()
  bool skip_special_tokens = false;  ///< decode without them
};

// All throw FormatError naming the input and the line or word if it is malformed or a line exceeds max_bytes,
// and Error if `output` cannot be written.

/// Reads the whole input as one text; writes ids separated by spaces and a line feed.
void encode_plain(const Tokenizer& tokenizer, const CodecInput& input, std::ostream& output);

/// Reads one JSON string per line; writes one JSON array of ids per line: "[1,2,3]". Empty lines are errors.
void encode_jsonl(const Tokenizer& tokenizer, const CodecInput& input, std::ostream& output);

/// Reads ids separated by white space; writes the text of Tokenizer::decode(), which for a tokenizer of bytes is exactly
/// their bytes.
void decode_plain(const Tokenizer& tokenizer, const CodecInput& input, std::ostream& output);

/// Reads one JSON array of ids per line; writes one JSON string per line. Bytes that are not UTF-8 become
/// U+FFFD, since JSON cannot represent them.
void decode_jsonl(const Tokenizer& tokenizer, const CodecInput& input, std::ostream& output);

}  // namespace stepforge
