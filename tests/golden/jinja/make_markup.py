#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what Jinja2 makes of safe strings beside other text.

    $(tools/oracle/environment.sh) tests/golden/jinja/make_markup.py
"""
import json
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment

EXPRESSIONS = """
('<'|safe) + '<'
'<' + ('<'|safe)
('<'|safe) + ('<'|safe)
('&'|e) + '&'
'<' ~ ('<'|safe) ~ 3 ~ '>'
('&<'|e) ~ '<'
('a'|safe) ~ none
('a'|safe) ~ ['<']
('<'|safe) * 3
2 * ('<'|safe)
(('<'|safe) * 2) + '<'
['<', '>'|safe]|join('&')
['<']|join('&'|safe)
('<'|safe) is escaped
(('<'|safe) + '<') is escaped
('<' ~ ('a'|safe)) is escaped
(['a'|safe]|join) is escaped
('a<'|safe)[0] is escaped
('a<'|safe)[0:1] is escaped
('<a'|safe)[1:] + '<'
('a'|safe)|upper is escaped
('a'|safe).upper() is escaped
('a'|safe)|title is escaped
('a'|safe).title() is escaped
(' a'|safe)|trim is escaped
(' a'|safe).strip() is escaped
('a'|safe)|capitalize + '<'
('a'|safe)|indent + '<'
('a'|safe)|string is escaped
('a'|safe)|default('x') + '<'
('a'|safe)|first is escaped
('a'|safe)|last is escaped
('ab'|safe)|reverse is escaped
('a<'|safe)|replace('a', '<')
'a'|replace('a', '<'|safe)
('a b'|safe).split(' ')[0] is escaped
'{}'.format('<'|safe)
'x'.join(['<'|safe, '>'])
('<'|safe) == '<'
('<'|safe)|length
('a'|safe)|escape is escaped
'args: ' ~ ({'a': '<'}|tojson|safe)
""".strip().splitlines()


def main():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)  # as transformers has it
    cases = [[e, environment.from_string("{{ " + e + " }}").render()] for e in EXPRESSIONS]
    text = "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n"
    (Path(__file__).parent / "markup.json").write_text(text)


if __name__ == "__main__":
    main()
