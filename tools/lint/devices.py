# SPDX-License-Identifier: Apache-2.0
"""The rule that a tensor is made on a device that the code names: that of another tensor, of the options of a store, or at::kCPU.

A factory of libtorch without a device makes a tensor on the CPU, which is a fault that shows only on other devices.
"""
import re

from cpp_source import without_literals

CODE = re.compile(r"stepforge/(storage|nn|train|optim|checkpoint|kernels)/(?!cpu/).*\.(h|cpp)$")
FACTORY = re.compile(r"\bat::(?:empty|empty_strided|zeros|ones|full|arange|tensor|scalar_tensor|from_blob|eye|linspace)\(")
NAMES_DEVICE = re.compile(r"\bdevice\(|\w*options(?:_of)?\b(?!\.)|\bon_host\(")


def call_from(text, begin):
    """The text of a call whose opening parenthesis ends at `begin`."""
    depth = 1
    for end in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            return text[begin:end]
    return text[begin:]


def check_devices(tree):
    for path, text in tree.code():
        if not CODE.match(path):
            continue
        text = without_literals(text)
        for found in FACTORY.finditer(text):
            if not NAMES_DEVICE.search(call_from(text, found.end())):
                line = text.count("\n", 0, found.start()) + 1
                tree.fault(path, line, f"`{found.group(0)}...)` names no device; give it the options of a tensor, or at::device(at::kCPU)")
