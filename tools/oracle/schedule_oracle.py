#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the order of actions of our pipeline schedules with that of PyTorch's generators, rank by rank.

    pip install torch==2.11.0
    tools/oracle/schedule_oracle.py SCHEDULE_DUMP

Bubbles and reductions are left out, and actions that PyTorch overlaps count one after the other. Compared is every number of ranks,
stages and micro-batches in a range that PyTorch takes. Exit code 1 with the first differences of each schedule.
"""
import csv
import io
import itertools
import subprocess
import sys
from types import SimpleNamespace

from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

SCHEDULES = ["GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
V_SHAPED = ["ZBVZeroBubble", "DualPipeV"]
RANKS, MICRO_BATCHES = (1, 2, 3, 4, 6, 8), range(1, 25)


def has_one_stage(name):
    """Per rank."""
    return issubclass(get_schedule_class(name), PipelineScheduleSingle)


def stages_per_rank(name):
    if has_one_stage(name):
        return [1]
    return [2] if name in V_SHAPED else [2, 3, 4]


def flat(actions):
    for action in actions:
        if action is not None and action.is_compute_op:
            yield from map(str, action.sub_actions or [action])


class Recorder:
    """A stage that notes what a schedule class makes it do."""

    is_last = False

    def __init__(self, stage, stages):
        self.stage_index, self.num_stages, self.actions = stage, stages, []

    def get_operations(self, micro_batch):
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = get_operations

    def forward_one_chunk(self, micro_batch, *_, **__):
        self.actions.append(f"{self.stage_index}F{micro_batch}")

    def backward_one_chunk(self, micro_batch, *_, **__):
        self.actions.append(f"{self.stage_index}B{micro_batch}")

    def perform_reduce_grad(self, divisor):
        pass


def order_run(kind, rank, ranks, micro_batches):
    """What a class for one stage per rank does. (What its `_get_pipeline_order` says is wrong for 1F1B: the last rank gets 1F1 to 1Fm.)"""
    recorder = Recorder(rank, ranks)
    schedule = kind(recorder, micro_batches, loss_fn=lambda *_: None)
    schedule._initialize_stage = lambda *_: None
    schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches, [None] * micro_batches)
    return recorder.actions


def order_of_pytorch(name, ranks, stages, micro_batches):
    """Actions of each rank; None if PyTorch refuses."""
    kind = get_schedule_class(name)
    try:
        if has_one_stage(name):
            return [order_run(kind, rank, ranks, micro_batches) for rank in range(ranks)]
        stage = SimpleNamespace(num_stages=ranks * stages, group_size=ranks, group_rank=0, submod=None)
        schedule = kind([stage] * stages, micro_batches, loss_fn=lambda *_: None)
    except (AssertionError, ValueError):
        return None
    return [list(flat(schedule.pipeline_order[rank])) for rank in range(ranks)]


def ours(program, cases):
    lines = "".join(f"{name} {ranks} {stages} {micro_batches}\n" for name, ranks, stages, micro_batches in cases)
    text = subprocess.run([program], input=lines, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [[list(filter(None, row)) for row in csv.reader(io.StringIO(part))] for part in text.split("\n\n")[:-1]]


def first_difference(ours, theirs):
    for rank, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        if our != their:
            place = next((i for i, (a, b) in enumerate(zip(our, their)) if a != b), min(len(our), len(their)))
            return f"rank {rank}, action {place}: ours {' '.join(our[place : place + 6])}, PyTorch's {' '.join(their[place : place + 6])}"
    return None


def check(program, name):
    cases = list(itertools.product([name], RANKS, stages_per_rank(name), MICRO_BATCHES))
    compared, different = 0, []
    for case, our in zip(cases, ours(program, cases), strict=True):
        theirs = order_of_pytorch(*case)
        if theirs is None:
            continue
        compared += 1
        difference = first_difference(our, theirs)
        if difference:
            different.append((case, difference))
    print(f"{'DIFFER' if different else 'equal '}  {name:24} {len(different)} of {compared} differ")
    for (_, ranks, stages, micro_batches), difference in different[:3]:
        print(f"  {ranks} ranks, {stages} stages per rank, {micro_batches} micro-batches: {difference}")
    return 1 if different or not compared else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(1 if sum(check(sys.argv[1], name) for name in SCHEDULES) else 0)
