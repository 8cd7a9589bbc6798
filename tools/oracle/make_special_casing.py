#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes stepforge/jinja/special_casing.cpp: the characters whose case Python maps otherwise than utf8proc's simple mappings.

    tools/oracle/make_special_casing.py > stepforge/jinja/special_casing.cpp
"""
import ctypes

library = ctypes.CDLL("libutf8proc.so.2")


def literal(text):
    return '"%s"' % "".join("\\x%02x" % byte for byte in text.encode())


def main():
    print("// SPDX-License-Identifier: Apache-2.0")
    print("// Written by tools/oracle/make_special_casing.py.")
    print('#include "stepforge/jinja/special_casing.h"\n')
    print("namespace stepforge::jinja {")
    for name, python, simple in (
        ("Upper", str.upper, library.utf8proc_toupper),
        ("Lower", str.lower, library.utf8proc_tolower),
        ("Title", str.title, library.utf8proc_totitle),
    ):
        print("\nconst std::vector<SpecialCase>& special_%s() {" % name.lower())
        print("  static const std::vector<SpecialCase> cases = {")
        for c in range(0x110000):
            if 0xD800 <= c < 0xE000:
                continue
            mapped = python(chr(c))
            if mapped != chr(simple(c)):
                print("      {0x%04X, %s}," % (c, literal(mapped)))
        print("  };\n  return cases;\n}")
    print("\n}  // namespace stepforge::jinja")


main()
