#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what transformers renders from templates/*.jinja with conversations.json.

    $(tools/oracle/environment.sh) tests/golden/jinja/make.py

The templates are our own, with the constructs of the published families that their names hint at.
"""
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[2] / "tools/oracle"))
from jinja_reference import NOW, render


def main():
    conversations = json.loads((FOLDER / "conversations.json").read_text())
    recorded = {"now": NOW, "cases": []}
    for path in sorted(FOLDER.glob("templates/*.jinja")):
        for name, variables in conversations.items():
            answer = render(path.read_text(), variables)
            if "error" in answer:
                answer = {"error": answer["error"].split(":", 1)[1].strip() if answer["refusal"] else "", "refusal": answer["refusal"]}
            recorded["cases"].append({"template": path.stem, "conversation": name, **answer})
    rows = ",\n".join(json.dumps(case, ensure_ascii=False) for case in recorded["cases"])
    (FOLDER / "recorded.json").write_text('{"now": %d, "cases": [\n%s\n]}\n' % (NOW, rows))


main()
