# SPDX-License-Identifier: Apache-2.0
"""What a measurement depends on: the processor, the commit, its highest rates, and the settings of the peers' environment."""
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What PyTorch's CPU users can set: malloc keeps memory instead of giving it back after every step, in huge pages. Stepforge's allocator
# does the same.
KEEP_MEMORY = "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1:glibc.malloc.trim_threshold=0x400000000:glibc.malloc.mmap_threshold=0x400000000"


def environment(threads, tuned=False, **more):
    """Of a program with so many threads. Tuned: also MKL chooses its kernels by instruction set, not by vendor, as for Stepforge
    (stepforge/kernels/mkl_setup.cpp)."""
    result = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1", **more}
    if tuned:
        result["GLIBC_TUNABLES"] = KEEP_MEMORY
        result["LD_PRELOAD"] = str(ROOT / "build/release/libbench_mkl.so")
    return result


def peak(threads):
    """Operations or bytes per second: {"fp32": …, "bf16": … or None, "copy": …}. Measured now."""
    output = subprocess.run([ROOT / "build/release/bench_peak", str(threads)], check=True, capture_output=True, text=True).stdout
    return {name: 1e9 * rates["all"] if rates else None for name, rates in json.loads(output).items() if name != "threads"}


def touch_memory(most=5 << 30):
    """The host of a virtual machine takes back memory that was idle, and the next program to use it waits for it: all find it alike.
    In a process of its own: Linux counts the largest resident size of a process also for those that it starts."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    subprocess.run([sys.executable, "-c", f"bytearray(b'1') * {min(most, free // 2)}"], check=True)


def processor():
    """Its name and what its vector units can do."""
    fields = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", "").split())
    kinds = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "bf16", "amx_bf16": "AMX"}
    name = fields.get("model name", os.uname().machine)
    if "cpu family" in fields:
        name += f" (family {fields['cpu family']}, model {fields['model']})"
    return f"{name}, {', '.join(text for flag, text in kinds.items() if flag in flags) or 'neither AVX2 nor AVX-512'}"


def commit():
    command = ["git", "-C", ROOT, "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


def print_machine():
    print(f"\n{processor()}, {len(os.sched_getaffinity(0))} cores; {time.strftime('%Y-%m-%d')}, commit {commit()}", flush=True)
