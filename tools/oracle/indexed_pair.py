# SPDX-License-Identifier: Apache-2.0
"""Reads what `stepforge data build` writes: tokens in Megatron's format and the mask beside them; imported by the scripts beside it."""
import numpy


def read_pair(prefix):
    """(token ids, mask of what counts) of each document."""
    index = prefix.with_suffix(".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    count = int.from_bytes(index[18:26], "little")
    lengths = numpy.frombuffer(index, numpy.int32, count, 34)
    width = {1: numpy.uint8, 4: numpy.int32, 8: numpy.uint16}[index[17]]
    tokens = numpy.fromfile(prefix.with_suffix(".bin"), width)
    mask = prefix.with_suffix(".mask").read_bytes()
    assert mask[:8] == b"SFMASK01" and int.from_bytes(mask[8:16], "little") == len(tokens)
    bits = numpy.unpackbits(numpy.frombuffer(mask, numpy.uint8, offset=16), bitorder="little")[: len(tokens)]
    ends = numpy.cumsum(lengths)
    return [(tokens[end - length : end].tolist(), bits[end - length : end].tolist()) for end, length in zip(ends, lengths)]
