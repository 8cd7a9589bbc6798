#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of stepforge/text/unicode_differences.cpp: where Hugging Face `tokenizers`, which has the tables of several
Unicode versions, differs from utf8proc.

    pip install tokenizers
    tools/oracle/make_unicode_differences.py > tables
"""
import ctypes

from tokenizers import normalizers, pre_tokenizers

utf8proc = ctypes.CDLL("libutf8proc.so.2")
libc = ctypes.CDLL(None)
CODE_POINTS = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
# One mark of each of several combining classes: a mark that is not known does not change places with them.
PROBES = "\u0334\u093c\u094d\u0345\u0316\u0301\u0591"
# U+11938 is their composition since Unicode 13.
NEW_COMPOSITIONS = {0x11930, 0x11935, 0x11938}
MARKS, PUNCTUATION = (6, 7, 8), range(12, 19)
WORD = (*range(1, 11), 12)  # all: utf8proc's general categories


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
    return {c for c in CODE_POINTS if (strip(chr(c)) == "") != (utf8proc.utf8proc_category(c) in MARKS)}


def other_punctuation():
    split = pre_tokenizers.Punctuation("removed").pre_tokenize_str
    return {c for c in CODE_POINTS if c > 0x7F and (split(chr(c)) == []) != (utf8proc.utf8proc_category(c) in PUNCTUATION)}


def other_word_characters():
    """Different from letters, marks, decimal digits, letter numbers and connectors."""
    split = pre_tokenizers.Whitespace().pre_tokenize_str
    return {c for c in CODE_POINTS if c > 0x7F and (len(split("a" + chr(c))) == 1 and split("a" + chr(c))[0][0] != "a") != (utf8proc.utf8proc_category(c) in WORD)}


def other_lower_case():
    lower = normalizers.Lowercase().normalize_str
    return {c: lower(chr(c)) for c in CODE_POINTS if lower(chr(c)) != chr(utf8proc.utf8proc_tolower(c)) and c != 0x130}


def ranges(points):
    found = []
    for c in sorted(points):
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def write(name, entries):
    print("constexpr %s = {" % name)
    print("".join("{0x%X, 0x%X}, " % tuple(entry) for entry in entries))
    print("};\n")


def main():
    write("Range kNewerThanForms[]", ranges(newer_than_forms()))
    write("Range kOtherMarks[]", ranges(other_marks()))
    write("Range kOtherPunctuation[]", ranges(other_punctuation()))
    write("Range kOtherWordCharacters[]", ranges(other_word_characters()))
    write("Lower kOtherLowerCase[]", sorted((c, ord(lower)) for c, lower in other_lower_case().items()))


main()
