# SPDX-License-Identifier: Apache-2.0
"""The rule that numbers of a step which depend on its data stay on the compute device (stepforge/kernels/scalars.h).

- No signature inside a step takes or returns such a number as a host number. A double or float result is always refused; other
  results, parameters and members are recognized by the words of their names.
- No code inside a step asks for the value of a tensor, which would wait for the device. (A kernel for the CPU reads memory through
  pointers; what it reads is the device's.)

Exceptions are named here with their reasons, and one that is no longer needed is an error.
"""
import re

from cpp_source import without_literals

SIGNATURES = re.compile(r"stepforge/(kernels/\w+|kernels/cpu/kernels|nn/\w+|storage/gradient_norm|optim/optimizer|train/(executor|training_services|averaging_domain))\.h$")
CODE = re.compile(r"stepforge/((kernels|nn|storage|optim)/.*|prove/exact_model|train/(executor|training_services|averaging_domain))\.(h|cpp)$")

WORDS = {"scale", "loss", "losses", "sum", "sums", "mean", "norm", "terms", "clip", "coefficient", "finite", "labels", "step", "steps", "updates"}
NAMES = {"lr_factor", "token_weight"}
SETTINGS = {"max_norm", "qk_norm"}  # have such a word, but do not depend on data
NUMBER = re.compile(r"\b(double|float|int|int64_t|bool)\s*&?\s+(\w+)\s*(\()?")
NUMBERS = re.compile(r"\b(?:span|vector|array|optional|pair)<\s*(?:const\s+)?(?:double|float)\b[^>]*>\s*&?\s*(\w+)")
HOST_READ = re.compile(r"\.(?:item\s*[<(]|cpu\(\)|to\(at::kCPU|is_nonzero\(|allclose\(|equal\()|\bat::(?:equal|allclose)\(")

AFTER_A_SKIPPED_STEP = "finds what was not finite, after a step that was skipped"
ALLOWED_SIGNATURES = {
    ("stepforge/kernels/dynamic_code.h", "dynamic_code"): "a table of constants",
    ("stepforge/kernels/cross_entropy.h", "label_share"): "follows from a setting",
    ("stepforge/kernels/nf4_values.h", "kNf4Values"): "a table of constants",
    ("stepforge/kernels/random_fill.h", "initial_value_reference"): "initial weights, before the first step",
    ("stepforge/kernels/reduce.h", "all_finite"): AFTER_A_SKIPPED_STEP,
    ("stepforge/optim/optimizer.h", "steps"): "checkpoints read and set the count between steps",
}
ALLOWED_READS = {
    ("stepforge/kernels/cross_entropy.cpp", "labels.ne(kIgnoredLabel).any().item<bool>()"): "only for labels in host memory",
    ("stepforge/kernels/expert_rows.cpp", "indices.cpu()"): "how many tokens an expert has is the size of its products",
    ("stepforge/kernels/reduce.cpp", "finite.item<bool>()"): AFTER_A_SKIPPED_STEP,
    ("stepforge/optim/optimizer.cpp", "steps_.item<double>()"): "checkpoints read the count between steps",
    ("stepforge/optim/clip_grad_norm.cpp", "norm.item<double>()"): "returns the norm to the user's own loop",
    ("stepforge/optim/clip_grad_norm.cpp", "coefficient.item<double>()"): "of the user's own loop",
}


def host_numbers(line):
    """The names of numbers on a line of a header that a step must not hold on the host."""
    for kind, name, call in NUMBER.findall(line):
        result = call and kind in ("double", "float")
        member = name.rstrip("_")
        if result or member in NAMES or member not in SETTINGS and WORDS & set(member.split("_")):
            yield name
    yield from NUMBERS.findall(line)


def check_step_scalars(tree):
    used = set()
    for path, text in tree.code():
        for number, line in enumerate(without_literals(text).split("\n"), 1):
            for name in host_numbers(line) if SIGNATURES.match(path) else ():
                if (path, name) in ALLOWED_SIGNATURES:
                    used.add((path, name))
                else:
                    tree.fault(path, number, f"`{name}` is a host number inside a step; pass a scalar on the compute device (kernels/scalars.h)")
            if CODE.match(path) and HOST_READ.search(line):
                reads = {key for key in ALLOWED_READS if key[0] == path and key[1] in line}
                used |= reads
                if not reads:
                    tree.fault(path, number, f"`{line.strip()}` waits for the compute device inside a step; let the next operation read the tensor")
    for path, what in sorted((ALLOWED_SIGNATURES.keys() | ALLOWED_READS.keys()) - used):
        if path in tree.text:
            tree.fault(path, 1, f"tools/lint/step_scalars.py allows `{what}`, which is not there")
