#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts which features of Jinja2 published chat templates use.

    tools/jinja/uses.py CORPUS.json > tests/golden/jinja/uses.tsv

CORPUS.json maps names to the sources of templates. Those of other projects stay out of this repository; the counts are facts about
them. The corpus of uses.tsv was made in November 2026 from 48 public repositories, among them forks of llama.cpp and vLLM, minja,
huggingface.js, text-generation-inference, TRL, axolotl, unsloth, open-instruct, xinference, gpt4all, openvino.genai, mistral.rs,
text-generation-webui, Megatron-LM and single models: every .jinja file, and every string of JSON, YAML, Python, C++, Rust, Swift and
JavaScript files that holds `{%`, names `messages`, and is parsed by Jinja2. Equal sources count once. Needs jinja2.

A line is: kind, name, templates that use it. A method is an attribute that is called, whatever it is called on.
"""
import collections
import json
import sys

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHOOSING = {"map": ("filter", 0), "select": ("test", 0), "reject": ("test", 0), "selectattr": ("test", 1), "rejectattr": ("test", 1)}
NAMES = {"caller", "kwargs", "self", "varargs"}


class Generation(Extension):
    tags = {"generation"}
    NAME = "generation block"

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.FilterBlock(body, nodes.Filter(None, self.NAME, [], [], None, None)).set_lineno(line)


ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
GLOBALS = set(ENVIRONMENT.globals) | {"raise_exception", "strftime_now"}


def details(node):
    """What a node is beside its class, as (kind, name)."""
    if isinstance(node, nodes.Filter):
        if node.name == Generation.NAME:
            yield "syntax", node.name
        else:
            yield ("filter" if node.name in ENVIRONMENT.filters else "no filter of Jinja2"), node.name
        kind, place = CHOOSING.get(node.name, (None, 0))
        if kind and len(node.args) > place and isinstance(node.args[place], nodes.Const):
            yield kind, node.args[place].value
        for argument in node.kwargs:
            yield "argument", "%s(%s=)" % (node.name, argument.key)
    elif isinstance(node, nodes.Test):
        yield "test", node.name
    elif isinstance(node, nodes.Call):
        if isinstance(node.node, nodes.Getattr):
            yield "method", node.node.attr
        if node.dyn_args or node.dyn_kwargs:
            yield "syntax", "call with * or **"
    elif isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name == "loop":
        yield "loop", node.attr
    elif isinstance(node, nodes.Name) and node.ctx == "load":
        if node.name in GLOBALS:
            yield "global", node.name
        if node.name in NAMES:
            yield "name", node.name
    elif isinstance(node, nodes.Compare):
        yield from (("operator", operand.op) for operand in node.ops)
    elif isinstance(node, nodes.For):
        yield from (("syntax", "for " + part) for part in ("recursive", "test", "else_") if getattr(node, part))
    elif isinstance(node, nodes.Slice) and node.step:
        yield "syntax", "slice with a step"
    elif isinstance(node, nodes.AssignBlock) and node.filter:
        yield "syntax", "set block with a filter"
    elif isinstance(node, nodes.Mod) and isinstance(node.left, nodes.Const) and isinstance(node.left.value, str):
        yield "syntax", "% of a string"
    elif isinstance(node, nodes.Const):
        yield "constant", type(node.value).__name__


def features(source):
    found = set()
    for node in ENVIRONMENT.parse(source).find_all(nodes.Node):
        found.add(("node", type(node).__name__))
        found.update(details(node))
    return found


def main():
    with open(sys.argv[1]) as file:
        corpus = json.load(file)
    counts = collections.Counter(feature for source in corpus.values() for feature in features(source))
    print("# %d templates, counted by tools/jinja/uses.py" % len(corpus))
    for (kind, name), count in sorted(counts.items()):
        print("%s\t%s\t%d" % (kind, name, count))


if __name__ == "__main__":
    main()
