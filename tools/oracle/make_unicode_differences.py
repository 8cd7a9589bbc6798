#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints stepforge/text/unicode_differences.cpp: where Hugging Face `tokenizers`, which has the tables of several Unicode versions,
differs from utf8proc.

    pip install tokenizers
    tools/oracle/make_unicode_differences.py > stepforge/text/unicode_differences.cpp
"""
import base64
import ctypes
import json
import struct

from tokenizers import Tokenizer, normalizers, pre_tokenizers

utf8proc = ctypes.CDLL("libutf8proc.so.2")
libc = ctypes.CDLL(None)
CODE_POINTS = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
# One mark of each of several combining classes: a mark that is not known does not change places with them.
PROBES = "\u0334\u093c\u094d\u0345\u0316\u0301\u0591"
# U+11938 is their composition since Unicode 13.
NEW_COMPOSITIONS = {0x11930, 0x11935, 0x11938}
# All: utf8proc's general categories.
NONSPACING, MARKS, PUNCTUATION, OTHER = (6,), (6, 7, 8), range(12, 19), (26, 27, 29)
WORD = (*range(1, 11), 12)


def category(c):
    return utf8proc.utf8proc_category(c)


def utf8proc_form(name, text):
    function = getattr(utf8proc, "utf8proc_" + name)
    function.restype = ctypes.c_void_p
    result = function(text.encode())
    form = ctypes.string_at(result).decode()
    libc.free(ctypes.c_void_p(result))
    return form


def newer_than_forms():
    found = set(NEW_COMPOSITIONS)
    for name in ("NFD", "NFKD"):
        theirs = getattr(normalizers, name)().normalize_str
        found |= {c for c in CODE_POINTS if theirs(chr(c)) != utf8proc_form(name, chr(c))}
    nfd = normalizers.NFD().normalize_str
    order = lambda form, c: [form("a" + chr(c) + p) for p in PROBES] + [form("a" + p + chr(c)) for p in PROBES]
    return found | {c for c in CODE_POINTS if order(nfd, c) != order(lambda text: utf8proc_form("NFD", text), c)}


def other_marks():
    strip = normalizers.StripAccents().normalize_str
    return {c for c in CODE_POINTS if (strip(chr(c)) == "") != (category(c) in MARKS)}


def other_nonspacing_marks():
    """Only characters that are their own canonical decomposition count: BertNormalizer decomposes before."""
    options = dict(clean_text=False, handle_chinese_chars=False, lowercase=False)
    strip = normalizers.BertNormalizer(strip_accents=True, **options).normalize_str
    nfd = normalizers.NFD().normalize_str
    whole = [c for c in CODE_POINTS if nfd(chr(c)) == chr(c)]
    return {c for c in whole if (strip(chr(c)) == "") != (category(c) in NONSPACING)}


def other_controls():
    """Different from control, format and private-use characters."""
    options = dict(handle_chinese_chars=False, strip_accents=False, lowercase=False)
    clean = normalizers.BertNormalizer(clean_text=True, **options).normalize_str
    known = lambda c: category(c) in OTHER and c not in (0x9, 0xA, 0xD)
    return {c for c in CODE_POINTS if c != 0xFFFD and (clean(chr(c)) == "") != known(c)}


def other_punctuation():
    split = pre_tokenizers.Punctuation("removed").pre_tokenize_str
    return {c for c in CODE_POINTS if c > 0x7F and (split(chr(c)) == []) != (category(c) in PUNCTUATION)}


def other_word_characters():
    """Different from letters, marks, decimal digits, letter numbers and connectors."""
    split = pre_tokenizers.Whitespace().pre_tokenize_str
    joins = lambda c: [piece for piece, _ in split("a" + chr(c))] == ["a" + chr(c)]
    return {c for c in CODE_POINTS if c > 0x7F and joins(c) != (category(c) in WORD)}


def other_lower_case():
    lower = normalizers.Lowercase().normalize_str
    return {c: lower(chr(c)) for c in CODE_POINTS if lower(chr(c)) != chr(utf8proc.utf8proc_tolower(c)) and c != 0x130}


def other_grapheme_extenders():
    """Characters of which utf8proc does not know that they belong to the letter before them, or the reverse."""
    # The character map of SentencePiece that replaces "a" by "b": a cluster that begins with "a" becomes "b".
    units = [1 << 10] + [0] * 255
    units[1 ^ ord("a")] = ord("a") | 1 << 8 | (1 ^ ord("a") ^ 2) << 10
    units[2] = 1 << 31
    charsmap = base64.b64encode(struct.pack("<I256I", 1024, *units) + b"b\0").decode()
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    definition = {"version": "1.0", "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap}, "model": model}
    normalize = Tokenizer.from_str(json.dumps(definition)).normalizer.normalize_str
    assert normalize("a") == "b" and normalize("xa") == "xb"
    joins = lambda c: normalize("a" + chr(c)) == "b"
    utf8proc.utf8proc_grapheme_break.restype = ctypes.c_bool
    return {c for c in CODE_POINTS if joins(c) == utf8proc.utf8proc_grapheme_break(ord("a"), c)}


def ranges(points):
    found = []
    for c in sorted(points):
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


TABLES = (
    ("is_newer_than_forms", "kNewerThanForms", newer_than_forms),
    ("is_mark_elsewhere", "kOtherMarks", other_marks),
    ("is_nonspacing_mark_elsewhere", "kOtherNonspacingMarks", other_nonspacing_marks),
    ("is_control_elsewhere", "kOtherControls", other_controls),
    ("is_punctuation_elsewhere", "kOtherPunctuation", other_punctuation),
    ("is_word_elsewhere", "kOtherWordCharacters", other_word_characters),
    ("is_grapheme_extender_elsewhere", "kOtherGraphemeExtenders", other_grapheme_extenders),
)
HEAD = """// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/unicode_differences.h"

#include <algorithm>
#include <iterator>

// Written by tools/oracle/make_unicode_differences.py.

namespace stepforge {

namespace {

struct Range {
  char32_t first;
  char32_t last;
};

struct Lower {
  char32_t letter;
  char32_t lower;
};

// clang-format off
"""
CONTAINS = """// clang-format on

template <size_t kSize>
bool contains(const Range (&ranges)[kSize], char32_t code_point) {
  const Range* range = std::lower_bound(std::begin(ranges), std::end(ranges), code_point,
                                        [](const Range& r, char32_t c) { return r.last < c; });
  return range != std::end(ranges) && range->first <= code_point;
}

}  // namespace
"""
LOWER = """
char32_t newer_lower_case(char32_t code_point) {
  const Lower* found = std::lower_bound(std::begin(kOtherLowerCase), std::end(kOtherLowerCase), code_point,
                                        [](const Lower& l, char32_t c) { return l.letter < c; });
  return found != std::end(kOtherLowerCase) && found->letter == code_point ? found->lower : 0;
}

}  // namespace stepforge"""


def write(declaration, entries):
    print("constexpr %s = {" % declaration)
    for start in range(0, len(entries), 5):
        print("    " + " ".join("{0x%X, 0x%X}," % tuple(entry) for entry in entries[start : start + 5]))
    print("};")


def main():
    print(HEAD, end="")
    for _, name, points in TABLES:
        write("Range %s[]" % name, ranges(points()))
    write("Lower kOtherLowerCase[]", sorted((c, ord(lower)) for c, lower in other_lower_case().items()))
    print(CONTAINS, end="")
    for function, name, _ in TABLES:
        print("\nbool %s(char32_t code_point) {\n  return contains(%s, code_point);\n}" % (function, name))
    print(LOWER)


if __name__ == "__main__":
    main()
