// SPDX-License-Identifier: Apache-2.0
// Regular expressions of tokenizer.json files are written for Oniguruma. This turns the part of its language
// that both engines understand alike into PCRE2's, and refuses the rest.
#pragma once

#include <string>
#include <string_view>

namespace stepforge {

/// The same pattern for PCRE2 with UTF and UCP. Written out so that Unicode 16 holds whatever Unicode PCRE2
/// was built with:
/// \p{..} for L, N, M, P, S, Lu, Ll, Lt, Lm, Lo, Nd, Nl, No; \s \S \d \D. Passed through: literals, escapes
/// of punctuation,
/// \r \n \t \f \x{..}, classes with ranges, . | * + ? {m,n} lazy and possessive, (..) (?:..) (?i:..) (?=..)
/// (?!..) (?<=..)
/// (?<!..) (?>..). Throws FormatError naming `source` and the byte of the pattern for anything else.
std::string rewrite_pattern(std::string_view pattern, std::string_view source);

}  // namespace stepforge
