# SPDX-License-Identifier: Apache-2.0
"""Renders a template as transformers does. For the jinja oracle and for tests/golden/jinja/make.py."""
import datetime
import os

os.environ["TZ"] = "UTC"

from transformers.utils import chat_template_utils

NOW = 1_753_900_245


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, tz)


chat_template_utils.datetime = FixedTime


def byte_spans(text, spans):
    """Spans of characters as spans of bytes, cut at the end of the text."""
    return [[len(text[:begin].encode()), len(text[:end].encode())] for begin, end in spans]


def render(template, variables):
    """{"text", "spans"}, or {"error", "refusal"}."""
    try:
        compiled = chat_template_utils._compile_jinja_template(template)
        blocks, spans = [], []
        with compiled.environment.activate_tracker(blocks, spans):
            for block in compiled.generate(**variables):
                blocks.append(block)
        text = "".join(blocks)
        text.encode()
        return {"text": text, "spans": byte_spans(text, spans)}
    except Exception as error:
        return {"error": "%s: %s" % (type(error).__name__, error), "refusal": type(error).__name__ == "TemplateError"}
