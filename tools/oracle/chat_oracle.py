#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares ChatTemplate with transformers' apply_chat_template: the golden templates in model folders of several kinds, on random
conversations.

    tools/oracle/chat_oracle.py JINJA_RENDER TOKENIZER_JSON [CONVERSATIONS_PER_TEMPLATE]

Exit code 1 with the first differences.
"""
import collections
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from jinja_reference import NOW  # fixes the time
from jinja_oracle import GOLDEN, fuzzed_conversations
from transformers import PreTrainedTokenizerFast

TOKENS = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "__type": "AddedToken"}, "pad_token": None}


def write_folder(folder, tokenizer_json, template, kind):
    folder.mkdir()
    shutil.copy(tokenizer_json, folder / "tokenizer.json")
    config = dict(TOKENS)
    if kind == 0:
        (folder / "chat_template.jinja").write_text(template)
    elif kind == 1:
        config["chat_template"] = template
    else:
        config["chat_template"] = [{"name": "default", "template": template}, {"name": "tool_use", "template": "T" + template}]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def theirs(tokenizer, question):
    try:
        return tokenizer.apply_chat_template(
            question["messages"], tools=question["tools"], documents=question["documents"], add_generation_prompt=question["add_generation_prompt"],
            continue_final_message=question["continue_final_message"], tokenize=False, **question["variables"])
    except Exception as error:
        return error


def main():
    program, tokenizer_json = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 60
    counts, different = collections.Counter(), []
    with tempfile.TemporaryDirectory() as work:
        questions, answers = [], []
        for number, path in enumerate(sorted(GOLDEN.glob("templates/*.jinja"))):
            folder = pathlib.Path(work) / path.stem
            write_folder(folder, tokenizer_json, path.read_text(), number % 3)
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
            for case, variables in enumerate(fuzzed_conversations(count, path.stem)):
                question = {"folder": str(folder), "now": NOW, "continue_final_message": case % 3 == 0}
                for key in ("messages", "tools", "documents"):
                    question[key] = variables.pop(key)
                question["add_generation_prompt"] = variables.pop("add_generation_prompt") and case % 3 != 0
                question["variables"] = {k: v for k, v in variables.items() if not k.endswith("_token")}
                questions.append(question)
                answers.append(theirs(tokenizer, question))
        lines = "".join(json.dumps(question) + "\n" for question in questions)
        done = subprocess.run([program], input=lines.encode(), stdout=subprocess.PIPE, check=True)
        for question, their, line in zip(questions, answers, done.stdout.decode().split("\n")):
            mine = json.loads(line)
            same = "error" in mine if isinstance(their, Exception) else mine.get("text") == their
            counts["different" if not same else "error" if "error" in mine else "equal"] += 1
            if not same:
                different.append((question, mine, their))
    for question, mine, their in different[:6]:
        print("  %s\n    stepforge    %s\n    transformers %r" % (json.dumps(question)[:700], json.dumps(mine)[:500], their))
    print("%d conversations: %d differ (%s)" % (len(questions), len(different), ", ".join("%d %s" % (n, k) for k, n in sorted(counts.items()))))
    sys.exit(1 if different else 0)


main()
