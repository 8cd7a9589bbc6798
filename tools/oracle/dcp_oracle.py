#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads Stepforge checkpoints with stock PyTorch: torch.distributed.checkpoint's HuggingFaceStorageReader, one process.

    pip install torch==2.11.0 safetensors numpy
    tools/oracle/dcp_oracle.py [--same] STEP_FOLDER...

Each step folder, of one rank or of several, is loaded twice, model and optimizer together and model alone, into tensors that start
as NaN. Every tensor must exist, with the shape, type and bytes that this script assembles from the files and the offsets in their
headers, and each element must come from exactly one file. With --same all folders must hold the same bytes: one step written by
several layouts of ranks. Exit code 1 with the first differences.
"""
import json
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch.distributed.checkpoint import HuggingFaceStorageReader

MAX_SHOWN = 10
OPTIMIZER_PREFIX = "optim."


class Parts:
    """The tensors of a folder, assembled from its files without torch.distributed."""

    def __init__(self, folder):
        self.pieces = {}
        self.files = sorted(folder.glob("*.safetensors"))
        for path in self.files:
            with safe_open(path, framework="pt") as file:
                sharding = json.loads(file.metadata()["DCP_SHARDING_INFO"])
                for name in file.keys():
                    self.pieces.setdefault(name, []).append((sharding[name]["saved_offsets"], file.get_tensor(name)))

    def whole(self, name):
        """The tensor, and how many of its elements are not in exactly one file."""
        pieces = self.pieces[name]
        shape = [max(offset[d] + tensor.shape[d] for offset, tensor in pieces) for d in range(pieces[0][1].dim())]
        whole = torch.full(shape, float("nan"), dtype=pieces[0][1].dtype)
        count = torch.zeros(shape, dtype=torch.int32)
        for offset, tensor in pieces:
            index = tuple(slice(begin, begin + size) for begin, size in zip(offset, tensor.shape))
            whole[index] = tensor
            count[index] += 1
        return whole, int((count != 1).sum())


def fresh(tensors):
    return {name: torch.full_like(tensor, float("nan")) for name, tensor in tensors.items()}


def same_bytes(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def load_with_dcp(folder, tensors):
    state = fresh(tensors)
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    return state


def compare(label, expected, loaded):
    wrong = [name for name, tensor in expected.items() if name not in loaded or not same_bytes(tensor, loaded[name])]
    for name in wrong[:MAX_SHOWN]:
        print(f"  {label}: {name} differs")
    return len(wrong)


def check_folder(folder):
    """The tensors of the folder, and the number of faults."""
    parts = Parts(folder)
    faults = 0
    everything = {}
    for name in sorted(parts.pieces):
        everything[name], wrong = parts.whole(name)
        if wrong:
            print(f"  {name}: {wrong} elements are in no file or in several")
            faults += 1
    model = {name: tensor for name, tensor in everything.items() if not name.startswith(OPTIMIZER_PREFIX)}

    described = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    for name in sorted(set(described) ^ set(everything)):
        print(f"  {name} is {'in the files' if name in everything else 'described'} only")
        faults += 1
    for name in set(described) & set(everything):
        if described[name].size != everything[name].shape or described[name].properties.dtype != everything[name].dtype:
            print(f"  {name} is described as {described[name].size} {described[name].properties.dtype}")
            faults += 1
    faults += compare("model and optimizer", everything, load_with_dcp(folder, everything))
    faults += compare("model alone", model, load_with_dcp(folder, model))
    print(
        f"{folder}: {len(model)} model and {len(everything) - len(model)} optimizer tensors in {len(parts.files)} files, "
        f"{'equal' if faults == 0 else f'{faults} FAULTS'}"
    )
    return everything, faults


def main():
    arguments = sys.argv[1:]
    same = arguments[:1] == ["--same"]
    folders = [Path(argument) for argument in arguments[same:]]
    if not folders:
        sys.exit(__doc__)
    print(f"torch {torch.__version__}")
    faults = 0
    expected = None
    for folder in folders:
        tensors, wrong = check_folder(folder)
        expected = expected or tensors
        faults += wrong
        if same:
            faults += compare(f"{folder} against {folders[0]}", expected, tensors)
    if faults > 0:
        sys.exit(1)


if __name__ == "__main__":
    main()
