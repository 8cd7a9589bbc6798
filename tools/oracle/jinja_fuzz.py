# SPDX-License-Identifier: Apache-2.0
"""Random programs in the template language."""
import random

from jinja_reference import render

NAMES = ["a", "b", "c", "s", "u", "n", "f", "xs", "d", "ms", "missing", "e", "t", "i", "m"]
FIELDS = ["role", "content", "name", "items", "k", "keys", "index", "upper", "update", "count", "text"]
STRINGS = ["", "a", "Ab c", " x ", "é", "ß\\n", "a-b c", "1", "2.5", "%s|%d", "{} {0}", "{}{}", "\\u20ac\\t", "it's", "\\\"q\\\"", "<|x|>", "\\x41", "ab,cd,,e", "\\\\d", "Ωσς", "ab\\nCd\\r\\nef", "𝒳y", "x" * 12]
METHODS = [
    "strip()", "lstrip()", "rstrip('x ')", "strip('a')", "split()", "split(',')", "split(none, 1)", "split(',', 1)", "splitlines()",
    "splitlines(true)", "upper()", "lower()", "title()", "capitalize()", "startswith('a')", "endswith(('a', 'x'))",
    "replace('a', 'b')", "replace('', '-')", "replace('a', 'xx', 1)", "join(xs)", "join(['p', 'q'])",
    "format(1, 2)", "format('z')", "items()", "keys()", "values()", "get('k')", "get('zz', 7)", "get('a')", "append(1)", "pop()", "nothing()", "update({})",
    "split('')", "upper(1)", "get()", "find('a')", "zfill(4)",
]
FILTERS = [
    "capitalize", "count", "default('D')", "default('D', true)", "d", "dictsort", "dictsort(true)", "dictsort(by='value')", "dictsort(reverse=true)", "first",
    "float", "float(1.5)", "format(1)", "format('x', 2)", "indent", "indent(2, true)", "indent('> ', blank=true)", "int", "int(7)", "items|list",
    "join", "join(', ')", "join('-', attribute='role')", "last", "length", "list", "lower", "map('upper')|list", "map(attribute='role')|list", "map(attribute='x.y', default='q')|list", "map('int')|list", "map('default', 'w')|list", "max", "min",
    "max(attribute='k')", "reject|list", "rejectattr('role', 'equalto', 'user')|list", "replace('a', 'b')", "replace(' ', '_', 1)", "reverse|list",
    "select|list", "select('string')|list", "select('integer')|list", "selectattr('role')|list", "selectattr('k', 'defined')|list", "sort", "sort(reverse=true)", "sort(attribute='role')", "sort(case_sensitive=true)", "string", "title", "tojson",
    "tojson(indent=2)", "tojson(separators=(',', ':'))", "tojson(sort_keys=true)", "tojson(ensure_ascii=true)", "tojson(indent=0)", "trim", "trim('a')", "unique|list", "unique(true)|list", "upper", "nofilter", "select('notest')|list", "reverse", "tojson(1, 2, 3, 4, 5)", "join(d=1)", "map|list", "safe", "batch(2)|list",
]
TESTS = ["defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string", "mapping", "sequence", "iterable",
         "in xs", "in(d)", "eq 1", "equalto('a')", "ne 2", "lt 3", "gt 0", "ge 1", "le 2", "escaped", "odd"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "and", "or", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "~", "+", "and", "or"]


SURROUNDINGS = (
    "{%% set ns = namespace(k=0, role='r') %%}{%% macro mac(x=1, y='Y') %%}[{{ x }}{{ y }}]{%% endmacro %%}"
    "{%% for i in [1, 2] %%}{%% set x, m = 1, {'role': 'user'} %%}{%% if loop %%}{{ %s }}{%% endif %%}{%% endfor %%}"
)


class Fuzz:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.inside = False
        self.known = {}

    def pick(self, values):
        return self.rng.choice(values)

    def literal(self):
        kind = self.rng.randrange(9)
        if kind < 3:
            quote = '"'
            return quote + self.pick(STRINGS) + quote
        if kind < 5:
            return str(self.pick([0, 1, 2, 3, 5, 7, 10, 12, 100, -1, 16]))
        if kind == 5:
            return self.pick(["1.5", "0.1", "2.675", "1e3", "1e16", "1e-5", "3.0", "12345.678", "1e22"])
        return self.pick(["true", "false", "none", "[]", "{}", "()", "True", "None"])

    def atom(self, depth):
        kind = self.rng.randrange(14)
        if kind < 5 or depth <= 0:
            return self.pick(NAMES)
        if kind < 8:
            return self.literal()
        if kind == 8:
            return "[%s]" % ", ".join(self.expression(depth - 1) for _ in range(self.rng.randrange(4)))
        if kind == 9:
            return "{%s}" % ", ".join("%s: %s" % (self.pick(["'k'", "'role'", "1", "1.0", "true", "'a'", "none", "'items'"]), self.expression(depth - 1)) for _ in range(self.rng.randrange(4)))
        if kind == 10:
            return "(%s)" % ", ".join(self.expression(depth - 1) for _ in range(self.rng.randrange(1, 4)))
        if kind == 11:
            return self.pick(["range(3)", "range(1, 6, 2)", "range(4, 0, -1)", "namespace(k=1, a='z')", "dict(k=1, role='r')", "dict(d, k=2)", "dict([('a', 1)])", "strftime_now('%Y %b')", "range(n)", "dict.nope"])
        if kind == 12:
            return self.pick(["loop.index", "loop.first", "loop.last", "loop.length", "loop.previtem", "loop.nextitem", "loop.revindex", "loop.index0", "loop", "mac(1)", "mac(a, y=b)", "mac", "ns.k", "ns.role", "ns.q", "caller()"])
        return "(%s)" % self.expression(depth - 1)

    def postfix(self, depth):
        node = self.atom(depth)
        for _ in range(self.pick([0, 0, 0, 1, 1, 2])):
            kind = self.rng.randrange(10)
            if kind < 3:
                node += "." + self.pick(METHODS)
            elif kind < 5:
                node += "." + self.pick(FIELDS)
            elif kind < 7:
                node += "[%s]" % self.pick(["0", "1", "-1", "'role'", "'content'", "'items'", "'k'", "i", "n", "5", "1.0", "none", "'upper'", "[]", "true", "a"])
            elif kind < 9:
                node += "[%s]" % self.pick([":", "1:", ":-1", "::2", "::-1", "1:3", "-2:", ":n", "3:1", "a:", "::0", "-5:10:3", "2::-1", "none:2"])
            else:
                node += self.pick([".0", "()", "(1)", "(*xs)", "(**d)"])
        return node

    def unary(self, depth):
        node = self.pick(["", "", "", "", "-", "+", "not "]) + self.postfix(depth)
        for _ in range(self.pick([0, 0, 1, 1, 2])):
            node += "|" + self.pick(FILTERS)
        if self.rng.random() < 0.15:
            node += " is %s%s" % (self.pick(["", "not "]), self.pick(TESTS))
        return node

    def expression(self, depth=2):
        """Mostly one that is no error where it is alone: one error ends a program."""
        if self.inside:
            return self.candidate(depth)
        self.inside = True
        for _ in range(3):
            result = self.candidate(depth)
            if self.rng.random() < 0.02 or "error" not in render(SURROUNDINGS % result, self.known):
                break
        else:
            result = self.pick(NAMES)
        self.inside = False
        return result

    def candidate(self, depth):
        kind = self.rng.random()
        if depth <= 0 or kind < 0.5:
            return self.unary(depth)
        if kind < 0.85:
            return "%s %s %s" % (self.unary(depth - 1), self.pick(BINARY), self.unary(depth - 1))
        if kind < 0.9:
            return "%s %s %s %s %s" % (self.unary(0), self.pick(["<", "==", ">="]), self.unary(0), self.pick(["<", "!=", "in"]), self.unary(0))
        other = " else " + self.expression(depth - 1) if self.rng.random() < 0.7 else ""
        return "%s if %s%s" % (self.unary(depth - 1), self.expression(depth - 1), other)

    def tag(self, text):
        return "{%%%s %s %s%%}" % (self.pick(["", "", "", "-", "+"]), text, self.pick(["", "", "", "-", "+"]))

    def space(self):
        return self.pick(["", "", " ", "\n", "\n  ", "  \n", "x", "é ", "\n\n", "\r\n", " {", "}", "t\t", "-"])

    def body(self, depth):
        return "".join(self.space() + self.statement(depth) for _ in range(self.rng.randrange(1, 4))) + self.space()

    def target(self):
        return self.pick(["a", "b", "c", "i", "m", "x", "s", "i", "m"])

    def statement(self, depth):
        if depth <= 0 or self.rng.random() < 0.4:
            return "{{%s %s %s}}" % (self.pick(["", "", "-"]), self.expression(self.pick([1, 2, 2, 3])), self.pick(["", "", "-"]))
        kind = self.rng.randrange(20)
        inner = lambda: self.body(depth - 1)
        if kind < 3:
            text = self.tag("if " + self.expression(1)) + inner()
            if self.rng.random() < 0.4:
                text += self.tag("elif " + self.expression(1)) + inner()
            if self.rng.random() < 0.5:
                text += self.tag("else") + inner()
            return text + self.tag("endif")
        if kind < 7:
            head = "for %s in %s" % (self.pick(["i", "m", "i", "m", "i", "m", "i", "m", "i, x", "a", "c"]), self.pick(["xs", "ms", "range(3)", "d", "d.items()", "s", "xs|reverse", self.expression(1), "ms|map(attribute='role')", "missing", "[[1, 2], [3, 4]]", "d|dictsort", "xs|select('integer')", "xs", "ms"]))
            if self.rng.random() < 0.3:
                head += " if " + self.expression(1)
            text = self.tag(head) + inner()
            if self.rng.random() < 0.3:
                text += self.tag("if " + self.expression(1)) + self.tag(self.pick(["break", "continue"])) + self.tag("endif")
            if self.rng.random() < 0.3:
                text += self.tag("else") + inner()
            return text + self.tag("endfor")
        if kind < 10:
            return self.tag("set %s = %s" % (self.pick([self.target(), self.target(), "ns.k", "ns.role", "a, b", "i, ns.k"]), self.expression(2)))
        if kind == 10:
            return self.tag("set %s%s" % (self.target(), self.pick(["", " | upper", " | trim | length"]))) + inner() + self.tag("endset")
        if kind == 11:
            signature = self.pick(["", "x", "x, y=2", "x='p', y=x", "a, b=a"])
            name = self.pick(["mac", "mac", "mic"])
            return self.tag("macro %s(%s)" % (name, signature)) + inner() + self.pick(["", "{{ caller() if caller }}", "{{ caller(1) }}"]) + self.tag("endmacro")
        if kind == 12:
            return "{% macro cal(x=1) %}({{ caller(x) if x is string else caller() }}){% endmacro %}" + self.tag("call%s %s" % (self.pick(["", "", "(x)", "(x, y=1)"]), self.pick(["mac()", "mac(1)", "mac(x=b)", "cal()"]))) + inner() + self.tag("endcall")
        if kind == 13:
            return self.tag("filter " + self.pick(["upper", "trim", "replace('a', b)", "upper|lower", "indent(2)", "length"])) + inner() + self.tag("endfilter")
        if kind == 14:
            return self.tag("set " + self.pick(["a = 1", "a, b = b, a", "x = %s" % self.expression(1), "a, b = xs"])) + inner()
        if kind < 17:
            return self.tag("generation") + inner() + self.tag("endgeneration")
        if kind == 17:
            return "{%s%s%s}" % (self.pick(["#", "#-", "#+"]), self.pick([" note ", "{{ a }}", "\n"]), self.pick(["#", "-#", "+#"]))
        if kind == 18:
            return self.tag("raw") + self.pick(["{{ a }}", " {% if %} ", "\n x "]) + self.tag("endraw")
        if self.rng.random() < 0.8:
            return "{{ a }}{{ b }}"
        return self.tag(self.pick(["break", "continue", "nosuch", "do xs", "set q", "endif", "if", "set loop = 1"]))

    def case(self):
        """A program and its variables."""
        self.known = self.variables()
        return self.program(), self.known

    def program(self):
        head = self.pick(["", "{% set ns = namespace(k=0, role='r') %}"] + ["{% set ns = namespace(k=1, role='b') %}{% macro mac(x=1, y='Y') %}[{{ x }}{{ y }}]{% endmacro %}"] * 3)
        return head + self.body(self.pick([1, 1, 2, 2, 3])) + self.pick(["", "\n", "\n\n"])

    def variables(self):
        rng = self.rng
        text = lambda: self.pick(["", "a", "Hello World", " padded \n", "é ü", "日本語", "a<b>&'\"", "line1\nline2", "x,y", "ABC", "123", "ß𝒳"])
        value = lambda: self.pick([0, 1, -3, 2.5, True, False, None, text(), [1, 2, 3], {"k": 1}, [], 10, 1e20, "7"])
        messages = [dict([("role", self.pick(["user", "assistant", "system", "tool", "User"])), ("content", self.pick([text(), None, [{"type": "text", "text": text()}]]))] + ([("k", self.pick([1, 2, 3, 0]))] if rng.random() < 0.6 else [])) for _ in range(rng.randrange(5))]
        return {
            "a": value(), "b": value(), "c": value(), "s": text(), "u": text(), "n": self.pick([0, 1, 2, 3]), "f": self.pick([1.5, 0.25, -2.0, 1e-7, 100.0]),
            "xs": [value() for _ in range(rng.randrange(5))] if rng.random() < 0.5 else self.pick([[3, 1, 2], ["b", "A", "c"], [1, 2, 3, 4, 5], [True, 1, 1.0]]),
            "d": self.pick([{}, {"k": 1, "items": 2, "b": None}, {"B": "x", "a": "y", "k": [1]}, {"role": "user", "text": "t"}]), "ms": messages,
            "e": self.pick(["", [], {}, 0]), "t": True,
        }
