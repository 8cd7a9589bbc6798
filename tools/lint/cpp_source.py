# SPDX-License-Identifier: Apache-2.0
"""Reads C++ sources for the checks: text without comments and literals, includes, variables."""
import re

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
LITERAL = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<delimiter>[^()\s]*)\(.*?\)(?P=delimiter)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\'',
    re.DOTALL,
)


def without_literals(text):
    """Comments become spaces, and strings and characters become empty literals. Line numbers stay the same."""

    def blank(match):
        shown = '""' if '"' in match.group(0)[:3] and not match.group(0).startswith("/") else " "
        return shown + "\n" * match.group(0).count("\n")

    return LITERAL.sub(blank, text)


def own_includes(text):
    return [quoted for quoted, _ in INCLUDE.findall(text) if quoted]


def system_includes(text):
    return [angled for _, angled in INCLUDE.findall(text) if angled]


def without_preprocessor(text):
    """Directives with their continuation lines become empty lines."""
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\(?:\n|.))*", lambda match: "\n" * match.group(0).count("\n"), text, flags=re.MULTILINE)


NOT_A_VARIABLE = re.compile(r"^(using|typedef|friend|static_assert|extern\s+template|namespace|class|struct|union|enum|template|concept|return|goto)\b")
SPECIFIERS = re.compile(r"\b(static|inline|extern|thread_local|mutable|volatile)\b")


def is_constant(declaration):
    """constexpr, or const; a pointer must itself be const."""
    if re.search(r"\bconstexpr\b", declaration):
        return True
    if "*" in declaration:
        return re.search(r"\*\s*const\b", declaration) is not None
    return re.search(r"\bconst\b", declaration) is not None


def kind_of_scope(before, inside):
    """The kind of scope that an opening brace begins, by the text before it: namespace, type, enum, init or code."""
    if re.search(r"\bnamespace\b", before) or re.search(r'\bextern\s*""\s*$', before):
        return "namespace"
    head = re.sub(r"^template\s*<.*?>\s*(?=class|struct|union)", "", before, flags=re.DOTALL)
    if re.match(r"(typedef\s+|static\s+)?(class|struct|union)\b", head) and "=" not in head and ")" not in head.split(":")[0]:
        return "type"
    if re.match(r"enum\b", head):
        return "enum"
    if inside == "init" or re.search(r"=\s*[^=]*$", before) and "operator" not in before:
        return "init"
    if inside in ("namespace", "type") and before and "(" not in before:
        return "init"
    return "code"


def mutable_state(text):
    """Mutable variables with static storage: pairs of line number and declaration."""
    found = []
    scopes = []
    statement, line, begin = "", 1, 1
    for character in without_preprocessor(without_literals(text)):
        if character == "\n":
            line += 1
        inside = scopes[-1][0] if scopes else "namespace"
        if character == "{":
            kind = kind_of_scope(statement.strip(), inside)
            scopes.append((kind, statement, begin))
            statement = ""
        elif character == "}":
            if scopes:
                kind, before, begin = scopes.pop()
                statement = before + "{}" if kind == "init" else ""
        elif character == ";":
            if is_mutable_variable(statement.strip(), inside):
                found.append((begin, " ".join(statement.split())))
            statement = ""
        else:
            if not statement.strip():
                begin = line
                statement = ""
            statement += character
    return found


def is_mutable_variable(statement, inside):
    statement = re.sub(r"^(public|private|protected)\s*:(?!:)\s*", "", statement)
    statement = re.sub(r"\[\[.*?\]\]\s*", "", statement)
    if not statement or NOT_A_VARIABLE.match(statement):
        return False
    declaration = re.split(r"=(?!=)|\{", statement, maxsplit=1)[0]
    if re.search(r"\bthread_local\b", declaration):
        return not is_constant(declaration)
    # A parenthesis before the initial value makes it a function, except inside a function.
    if inside == "namespace":
        if "(" in declaration or "operator" in declaration:
            return False
        return not is_constant(declaration) and len(SPECIFIERS.sub("", declaration).split()) >= 1
    if inside == "type":
        return re.search(r"\bstatic\b", declaration) is not None and "(" not in declaration and not is_constant(declaration)
    if inside in ("code", "init"):
        return re.match(r"static\b", declaration) is not None and not is_constant(declaration)
    return False
