// SPDX-License-Identifier: Apache-2.0
// Changes of single characters in the normalizers BertNormalizer and Nmt, as Hugging Face has them.
#pragma once

#include <string>
#include <string_view>

namespace stepforge {

/// Without control, format, private-use and replacement characters; white space becomes spaces.
std::string without_controls(std::string_view text);

/// A space on both sides of each CJK ideograph.
std::string with_spaced_ideographs(std::string_view text);

/// Without marks of the category Mn.
std::string without_nonspacing_marks(std::string_view text);

/// As in the training of Google's translation models: without most ASCII control characters, with spaces in place
/// of some invisible characters.
std::string nmt_text(std::string_view text);

}  // namespace stepforge
