#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes NF4 codes of bitsandbytes' CPU path for weights that are normal, uniform, tiny (but no denormals, which its bf16 kernel flushes), huge, zero, or halfway between two codes.
Then codes of the factors of other weights (double quantization, compress_statistics). There the last bits of the mean of all factors depend on the number of threads;
here the mean is rounded once.

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
packed, state_of_values = F.quantize_4bit(values, blocksize=64, quant_type="nf4", compress_statistics=False)
decoded = F.dequantize_4bit(packed, state_of_values)
half = F.dequantize_4bit(packed, F.QuantState(absmax=state_of_values.absmax, shape=state_of_values.shape, code=state_of_values.code, blocksize=64, quant_type="nf4", dtype=torch.bfloat16))

widths = torch.cat([torch.full((400,), 0.02), 0.02 * torch.randn(200).exp(), torch.full((30,), 0.0), torch.full((70,), 1e-12)])
weights = torch.randn(widths.numel(), 64) * widths[:, None]
_, plain = F.quantize_4bit(weights, blocksize=64, quant_type="nf4", compress_statistics=False)
factors = plain.absmax
offset = factors.double().mean().float()
codes, state = F.quantize_blockwise(factors - offset, blocksize=256)
double_decoded = F.dequantize_blockwise(codes, state) + offset
torch.set_num_threads(1)
_, double = F.quantize_4bit(weights, blocksize=64, quant_type="nf4", compress_statistics=True)
assert abs(double.offset - offset) <= 2 * torch.finfo(torch.float32).eps * offset, (double.offset, offset)
if double.offset == offset:
    assert torch.equal(double.absmax, codes) and torch.equal(double.state2.absmax, state.absmax)
double_quantized = {"double_factors": factors, "double_codes": codes, "double_scales": state.absmax, "double_offset": offset.reshape(1), "double_decoded": double_decoded,
                    "dynamic_code": F.create_dynamic_map(), "dynamic_code_unsigned": F.create_dynamic_map(signed=False)}  # fmt: skip
save_file({"values": values, "codes": packed.flatten(), "factors": state_of_values.absmax, "decoded": decoded.flatten(), "decoded_bf16": half.flatten(), **double_quantized}, sys.argv[1])
