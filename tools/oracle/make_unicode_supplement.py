#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints stepforge/text/unicode_supplement.cpp: the code points whose general category is known to the regular-expression engine of
Hugging Face `tokenizers`, but not to the PCRE2 of the build machine (Unicode 14).

    pip install tokenizers
    g++ -O1 -o unicode_dump tools/oracle/unicode_dump.cpp -lpcre2-32
    ./unicode_dump | tools/oracle/make_unicode_supplement.py > stepforge/text/unicode_supplement.cpp

Fails if PCRE2 puts a code point into a category and the other engine does not: a supplement cannot correct that.
"""
import sys

from tokenizers import Regex, pre_tokenizers

CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Nl", "No", "M", "P", "S"]
ALL_TEXT = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)


def members(category):
    """The code points of one category according to Hugging Face's engine."""
    keep = pre_tokenizers.Split(Regex(r"\p{%s}" % category), "removed", invert=True)
    found = set()
    for start in range(0, len(ALL_TEXT), 4096):
        for piece, _ in keep.pre_tokenize_str(ALL_TEXT[start : start + 4096]):
            found.update(map(ord, piece))
    return found


def ranges(code_points):
    result = []
    for c in sorted(code_points):
        if result and result[-1][1] == c - 1:
            result[-1][1] = c
        else:
            result.append([c, c])
    return result


def main():
    known = {}
    for line in sys.stdin:
        category, *spans = line.split()
        known[category] = {c for a, b in (s.split("-") for s in spans) for c in range(int(a, 16), int(b, 16) + 1)}
    rows = []
    for category in CATEGORIES:
        wanted = members(category)
        surplus = known[category] - wanted
        if surplus:
            sys.exit("PCRE2 has surplus code points in %s: %s" % (category, [hex(c) for c in sorted(surplus)]))
        rows += ["    {0x%X, 0x%X, \"%s\"}," % (a, b, category) for a, b in ranges(wanted - known[category])]
    print("// SPDX-License-Identifier: Apache-2.0")
    print('#include "stepforge/text/unicode_supplement.h"\n')
    print("// Written by tools/oracle/make_unicode_supplement.py.\n")
    print("namespace stepforge {\n\nnamespace {\n")
    print("constexpr CategoryRange kSupplement[] = {")
    print("\n".join(rows))
    print("};\n\n}  // namespace\n")
    print("std::span<const CategoryRange> unicode_supplement() { return kSupplement; }\n\n}  // namespace stepforge")


main()
