// SPDX-License-Identifier: Apache-2.0
// Regular expressions in tokenizer.json are written for Oniguruma. This rewrites those that both engines
// treat the same way for PCRE2, and refuses the rest.
#pragma once

#include <string>
#include <string_view>

namespace stepforge {

/// The same pattern for PCRE2 with UTF and UCP.
/// - Written out as in Unicode 16, whatever version PCRE2 has: \p{..} for L, N, M, P, S, Lu, Ll, Lt, Lm, Lo,
///   Nd, Nl, No; \s \S \d \D.
/// - Copied: literals, escapes of punctuation, \r \n \t \f \x{..}, classes with ranges, . | * + ? {m,n} lazy
///   and possessive, (..) (?:..) (?i:..) (?=..) (?!..) (?<=..) (?<!..) (?>..).
/// Throws FormatError naming `source` and the byte of the pattern for anything else.
std::string rewrite_pattern(std::string_view pattern, std::string_view source);

}  // namespace stepforge
