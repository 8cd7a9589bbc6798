#!/usr/bin/env python3
"""Loads Stepforge checkpoints with stock PyTorch: torch.distributed.checkpoint's HuggingFaceStorageReader, one process.

    pip install torch==2.11.0 safetensors numpy
    tools/oracle/dcp_oracle.py STEP_FOLDER...

Each step folder is loaded twice, model and optimizer together and model alone, into tensors that start as NaN. Every tensor must
be there, with the shape, type and bytes that safetensors.torch.load_file finds in the files. Exit code 1 with the first differences.
"""
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageReader

MOST_SHOWN = 10


def fresh(tensors):
    return {name: torch.full_like(tensor, float("nan")) for name, tensor in tensors.items()}


def same_bytes(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def load_with_dcp(folder, tensors):
    state = fresh(tensors)
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    return state


def compare(what, expected, loaded):
    wrong = [name for name, tensor in expected.items() if not same_bytes(tensor, loaded[name])]
    for name in wrong[:MOST_SHOWN]:
        print(f"  {what}: {name} differs")
    return len(wrong)


def check_folder(folder):
    model = load_file(folder / "model.safetensors")
    optimizer_file = folder / "optimizer.safetensors"
    optimizer = load_file(optimizer_file) if optimizer_file.exists() else {}
    everything = {**model, **optimizer}

    described = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    faults = 0
    for name in sorted(set(described) ^ set(everything)):
        print(f"  {name} is {'in the files' if name in everything else 'described'} only")
        faults += 1
    for name in set(described) & set(everything):
        if described[name].size != everything[name].shape or described[name].properties.dtype != everything[name].dtype:
            print(f"  {name} is described as {described[name].size} {described[name].properties.dtype}")
            faults += 1
    faults += compare("model and optimizer", everything, load_with_dcp(folder, everything))
    faults += compare("model alone", model, load_with_dcp(folder, model))
    print(f"{folder}: {len(model)} model and {len(optimizer)} optimizer tensors, {'equal' if faults == 0 else f'{faults} FAULTS'}")
    return faults


def main():
    folders = [Path(argument) for argument in sys.argv[1:]]
    if not folders:
        sys.exit(__doc__)
    print(f"torch {torch.__version__}")
    if sum([check_folder(folder) for folder in folders]) > 0:
        sys.exit(1)


if __name__ == "__main__":
    main()
