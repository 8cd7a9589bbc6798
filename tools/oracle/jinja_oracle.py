#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares stepforge/jinja with Jinja2 in transformers' environment: text, generation spans, and whether it is an error.

    tools/oracle/jinja_oracle.py JINJA_RENDER [NUMBER_OF_PROGRAMS [SEED]]

First the templates of tests/golden/jinja on random conversations, then random programs. What the interpreter refuses as not
supported or as over a limit is counted, not compared. Exit code 1 with the first differences.
"""
import collections
import json
import pathlib
import random
import re
import subprocess
import sys
import warnings

from jinja_fuzz import Fuzz
from jinja_reference import NOW, render

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/jinja"


def ours(program, cases):
    lines = "".join(json.dumps({"template": t, "variables": v, "now": NOW}) + "\n" for t, v in cases)
    done = subprocess.run([program], input=lines.encode(), stdout=subprocess.PIPE)
    answers = [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]
    if done.returncode != 0 or len(answers) != len(cases):
        sys.exit("%s: exit code %d after %d of %d cases: %s" % (program, done.returncode, len(answers), len(cases), cases[len(answers) : len(answers) + 1]))
    return answers


def has_no_stable_text(answer):
    """Whether Python printed an address."""
    return re.search(r" at 0x[0-9a-f]{6,}", answer.get("text", "")) is not None


def verdict(mine, theirs):
    if mine.get("reason") in ("unsupported", "limit") or has_no_stable_text(theirs):
        return mine.get("reason", "address")
    if ("error" in mine) != ("error" in theirs):
        return "different"
    if "error" in mine:
        return "error" if (mine["reason"] == "refusal") == theirs["refusal"] else "different"
    return "equal" if (mine["text"], mine["spans"]) == (theirs["text"], theirs["spans"]) else "different"


def compare(program, name, cases):
    counts = collections.Counter()
    different = []
    for (template, variables), mine in zip(cases, ours(program, cases)):
        theirs = render(template, variables)
        result = verdict(mine, theirs)
        counts[result] += 1
        if result == "different":
            different.append((template, variables, mine, theirs))
    print("%s: %d of %d differ (%s)" % (name, len(different), len(cases), ", ".join("%d %s" % (n, k) for k, n in sorted(counts.items()))))
    for template, variables, mine, theirs in sorted(different, key=lambda case: len(case[0]))[:8]:
        print("  template  %r\n  variables %s\n  stepforge %s\n  jinja2    %s" % (template[:600], json.dumps(variables)[:600], json.dumps(mine)[:500], json.dumps(theirs)[:500]))
    return len(different)


def fuzzed_conversations(count, seed):
    """Variables as apply_chat_template passes them."""
    rng = random.Random(seed)
    text = lambda: rng.choice(["", "Hi", " spaced ", "two\nlines\n", "日本 é", "<|x|> </s>", "{{ not a tag }}", "a 'b' \"c\"", "<think>why</think>\n\nso", "x" * 40])
    call = lambda: {"id": "call%05d" % rng.randrange(99999), "type": "function", "function": {"name": rng.choice(["f", "get_time"]), "arguments": rng.choice([{}, {"q": text(), "n": 3}, {"deep": {"l": [1, None, 2.5]}}])}}
    for _ in range(count):
        messages = []
        if rng.random() < 0.5:
            messages.append({"role": rng.choice(["system", "system", "developer"]), "content": text()})
        for i in range(rng.randrange(0, 6)):
            role = ["user", "assistant"][i % 2] if rng.random() < 0.85 else rng.choice(["user", "assistant", "tool", "other"])
            message = {"role": role, "content": rng.choice([text(), text(), text(), None, [{"type": "text", "text": text()}, {"type": "image"}]])}
            if role == "assistant" and rng.random() < 0.3:
                message["tool_calls"] = [call() for _ in range(rng.randrange(1, 3))]
            if role == "assistant" and rng.random() < 0.2:
                message["reasoning_content"] = text()
            if role == "tool":
                message["name"] = "f"
                message["tool_call_id"] = "call00001"
            messages.append(message)
        tools = [{"type": "function", "function": {"name": "f", "description": text(), "parameters": {"type": "object", "properties": {"q": {"type": "string", "description": text()}, "n": {"type": ["integer", "null"], "enum": [1, 2]}}, "required": ["q"]}}}]
        yield {"messages": messages, "tools": rng.choice([None, None, tools, tools * 2, []]), "documents": rng.choice([None, None, [{"title": text(), "text": text()}]]), "add_generation_prompt": rng.random() < 0.5,
               "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", **rng.choice([{}, {}, {"enable_thinking": rng.random() < 0.5}, {"date_string": "1 May 2025", "reasoning_effort": "high"}])}


def main():
    warnings.simplefilter("ignore")  # Python's compiler warns of what random programs do
    program = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2500
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    different = 0
    golden = sorted(GOLDEN.glob("templates/*.jinja"))
    for path in golden:
        template = path.read_text()
        different += compare(program, path.stem, [(template, v) for v in fuzzed_conversations(100, path.stem)])
    fuzz = Fuzz(seed)
    for begin in range(0, count, 5000):
        cases = [fuzz.case() for _ in range(min(5000, count - begin))]
        different += compare(program, "programs %d to %d" % (begin, begin + len(cases)), cases)
    print("%d templates, %d programs: %d differences" % (len(golden), count, different))
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
