#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes NF4 codes of bitsandbytes' CPU path for weights that are normal, uniform, tiny (but no denormals, which its bf16 kernel flushes), huge, zero, or halfway between two codes.

    pip install torch bitsandbytes safetensors
    tools/oracle/make_nf4_golden.py tests/golden/nf4.safetensors
"""
import sys

import bitsandbytes.functional as F
import torch
from safetensors.torch import save_file

torch.manual_seed(5)
code = F.get_4bit_type("nf4", device="cpu") if not hasattr(F, "get_4bit_code") else F.get_4bit_code("nf4", "cpu")
between = torch.cat([(code[1:] + code[:-1]) / 2, code, -code, torch.tensor([1.0] * 17)])
values = torch.cat([torch.randn(64 * 6) * 0.02, torch.rand(64 * 2) - 0.5, torch.zeros(64), torch.randn(64) * 1e-30, torch.randn(64) * 1e30, between])
assert values.numel() % 64 == 0, values.numel()
packed, state = F.quantize_4bit(values, blocksize=64, quant_type="nf4", compress_statistics=False)
decoded = F.dequantize_4bit(packed, state)
half = F.dequantize_4bit(packed, F.QuantState(absmax=state.absmax, shape=state.shape, code=state.code, blocksize=64, quant_type="nf4", dtype=torch.bfloat16))
save_file({"values": values, "codes": packed.flatten(), "factors": state.absmax, "decoded": decoded.flatten(), "decoded_bf16": half.flatten()}, sys.argv[1])
