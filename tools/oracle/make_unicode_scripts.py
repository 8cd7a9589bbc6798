#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints stepforge/text/unicode_scripts.cpp: which characters the pre-tokenizer UnicodeScripts of Hugging Face `tokenizers` keeps
together.

    pip install tokenizers
    tools/oracle/make_unicode_scripts.py > stepforge/text/unicode_scripts.cpp
"""
from tokenizers import pre_tokenizers

split = pre_tokenizers.UnicodeScripts().pre_tokenize_str
HEAD = """// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/unicode_scripts.h"

#include <algorithm>
#include <iterator>

// Written by tools/oracle/make_unicode_scripts.py.

namespace stepforge {

namespace {

struct ScriptRange {
  char32_t first;
  char32_t last;
  uint8_t script;
};

// clang-format off
constexpr ScriptRange kScripts[] = {"""
TAIL = """};
// clang-format on

}  // namespace

uint8_t script_of(char32_t code_point) {
  const ScriptRange* range = std::lower_bound(std::begin(kScripts), std::end(kScripts), code_point,
                                              [](const ScriptRange& r, char32_t c) { return r.last < c; });
  return range != std::end(kScripts) && range->first <= code_point ? range->script : kAnyScript;
}

}  // namespace stepforge"""


def main():
    samples = ["a", "\u0430"]  # of each script found so far
    joins = lambda i, c: len(split(samples[i] + chr(c))) == 1
    last = 0
    found = []
    for c in range(0x110000):
        if 0xD800 <= c < 0xE000:
            continue
        if joins(last, c):
            # Either the script of the character before, or any.
            script = 0 if joins(0 if last else 1, c) else last + 1
        else:
            script = next((i + 1 for i in range(len(samples)) if joins(i, c)), len(samples) + 1)
            if script > len(samples):
                samples.append(chr(c))
        if script == 0:
            continue
        last = script - 1
        if found and found[-1][1] == c - 1 and found[-1][2] == script:
            found[-1][1] = c
        else:
            found.append([c, c, script])
    print(HEAD)
    for start in range(0, len(found), 4):
        print("    " + " ".join("{0x%X, 0x%X, %d}," % tuple(entry) for entry in found[start : start + 4]))
    print(TAIL)


main()
