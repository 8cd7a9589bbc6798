// SPDX-License-Identifier: Apache-2.0
// The scripts of the pre-tokenizer UnicodeScripts of Hugging Face `tokenizers`, which are those of an old Unicode.
#pragma once

#include <cstdint>

namespace stepforge {

/// Belongs to every script.
inline constexpr uint8_t kAnyScript = 0;

/// A number for the script of a character; Chinese and Japanese have the same.
uint8_t script_of(char32_t code_point);

}  // namespace stepforge
