#!/usr/bin/env python3
"""Documents, error texts, comments and names are in plain English: words that readers stumble over have a plain one in their place.

    words.py TREE     prints each line with such a word, as file:line: sentence. Exit 1 if there is one, or if a planted one goes unnoticed

Only words without a legitimate use in these texts are listed. Code in a document (between backquotes, or indented) is not looked at.
"""
import ast
import io
import re
import sys
import tokenize
from pathlib import Path

DOCUMENTS = ("*.md", "docs/*.md", "include/**/*.md", "lib/**/*.md", "codecs/**/*.md", "examples/*.md", "datasets/*.md")
EXEMPT = ("CHANGELOG.md", "tests/lint/words.py")  # what was released is not rewritten; this file has the words
HEADERS = ("include/**/*.h", "include/**/*.hpp")  # all of them are documentation
SOURCES = ("lib/**/*.?pp", "lib/**/*.cu", "capi/*.?pp", "codecs/**/*.?pp", "tool/**/*.?pp")  # their string literals
COMMENTS = ("lib/sender/*.?pp",)  # of these the comments, too
PYTHON = ("tests/**/*.py", "bench/**/*.py", "bindings/**/*.py")  # their docstrings, comments and names
MESSAGES = ("bindings/**/*.py",)  # of these the string literals, too

RULES = [
    (r"told", "reported, sent, informed"),
    (r"said", "stated, reported"),
    (r"came", "arrived, was"),
    (r"wanted", "requested, needed"),
    (r"anew", "again"),
    (r"whoever|somebody|nobody", "who it is: a rank, a caller, no caller"),
    # "is no text", but neither "there is no text" nor "is no larger"
    (r"(?<!there )(?:is|are) no (?!(?!number\b|power\b)\w+er\b|more\b|less\b|worse\b|doubt\b|\w+ (?:in|of) (?:it|them)\b)\w+", "is not a"),
]
FOUND_BY = [(re.compile(rf"\b(?:{words})\b", re.IGNORECASE), plain) for words, plain in RULES]
# Names in Python: whole names, parts of names, and parts of constants.
NAMES = {
    "each": "the item's own: row, tensor, rank",
    "kept": "selected, saved, residual",
    "most": "limit, largest, max_…",
    "least": "minimum, smallest, min_…",
    "gives": "returns",
    "tells": "reports",
}
PARTS = {"told": "report, printed, info", "said": "message, output", "came": "received", "wanted": "requested, expected"}
CONSTANT_PARTS = {"MOST": "MAX_…, LIMIT", "LEAST": "MIN_…"}
# Public fields: callers read them, so their names do not change. They mirror the C ABI's dr_result.kept.
PUBLIC = {
    ("bindings/python/deepreduce/" + file, "kept")
    for file in ("bound.py", "exchange.py", "sender.py", "torch/_engine.py", "torch/_shards.py", "torch/_unit.py")
}
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def prose(text):
    """The lines of a document without its code."""
    fenced = False
    for line in text.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        yield "" if fenced or line.startswith("    ") else re.sub(r"`[^`]*`", "``", line)


def strings(text):
    for line in text.split("\n"):
        line = line.strip()
        yield "" if line.startswith(("//", "#include")) else " | ".join(STRING.findall(line))


def comments(text):
    for line in text.split("\n"):
        _, mark, comment = line.partition("//")
        yield comment if mark else ""


def docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            yield node.body[0].value


def python_prose(text):
    """The docstrings and comments of a Python file, line by line."""
    lines, tree = [""] * (text.count("\n") + 1), ast.parse(text)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("# noqa"):
            lines[token.start[0] - 1] += token.string
    for docstring in docstrings(tree):
        for number in range(docstring.lineno, docstring.end_lineno + 1):
            lines[number - 1] = text.split("\n")[number - 1]
    yield from (re.sub(r"`[^`]*`", "``", line) for line in lines)


def python_strings(text):
    """The string literals of a Python file, each at the line where it begins. Not its docstrings."""
    lines, tree = [""] * (text.count("\n") + 1), ast.parse(text)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    skipped = parts | {id(docstring) for docstring in docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            words = "…".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            words = node.value
        else:
            continue
        if " " in words:  # a literal of one word is a key or a name, not a sentence
            lines[node.lineno - 1] += " | " + words
    yield from lines


def names_of(text):
    """(line, name) of all that a Python file defines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.lineno, node.name


def plain_of(name):
    """The plain word in place of a name, or of a part of it; None: the name is plain."""
    whole = name.strip("_")
    if whole.lower() in NAMES:
        return NAMES[whole.lower()]
    parts = whole.split("_")
    found = (PARTS.get(part.lower()) or CONSTANT_PARTS.get(part) for part in parts)
    return next(filter(None, found), None) if len(parts) <= 3 else None  # (a longer name is a sentence)


def names_at_fault(name, text):
    for number, word in sorted(set(names_of(text))):
        if (name, word) not in PUBLIC and (plain := plain_of(word)):
            yield f"{name}:{number}: the name '{word}' has a plain one: {plain}"


def faults(name, lines):
    for number, line in enumerate(lines, 1):
        for rule, plain in FOUND_BY:
            if found := rule.search(line):
                yield f"{name}:{number}: '{found[0]}' has a plain word: {plain}"


def read(root, patterns):
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            name = path.relative_to(root).as_posix()
            if name not in EXEMPT:
                yield name, path.read_text(encoding="utf-8")


def check(root):
    for name, text in read(root, DOCUMENTS):
        yield from faults(name, prose(text))
    for name, text in read(root, HEADERS):
        yield from faults(name, text.split("\n"))
    for name, text in read(root, SOURCES):
        yield from faults(name, strings(text))
    for name, text in read(root, COMMENTS):
        yield from faults(name, comments(text))
    for name, text in read(root, PYTHON):
        yield from faults(name, python_prose(text))
        yield from names_at_fault(name, text)
    for name, text in read(root, MESSAGES):
        yield from faults(name, python_strings(text))


PLANTS = [
    (prose, "Each rank is told of the fault."),
    (prose, "A pattern that is no text is refused."),
    (prose, "  Then the batch is prepared anew."),
    (strings, '    return fail(error, DR_E_ARGUMENT, "tensor %zu: this is no tensor", i);'),
    (strings, '  fail(error, DR_E_TIMEOUT, "rank %u came too late", rank);'),
    (comments, "  // A frame that came."),
    (python_prose, '"""What it said."""\nx = 1'),
    (python_prose, "x = 1  # this is no tensor"),
    (python_strings, 'raise Error(f"{name} is no number of {bits} bits")'),
    (python_strings, 'def f():\n    """A text."""\n    return "each rank " "is told"'),
    (strings, '  const char* text = "the frame that was \\"wanted\\"";'),
]
FINE = [
    (prose, "If there is no plan, a frame is no larger than the dense tensor; `nobody` is a name."),
    (prose, "    x = told()"),
    (strings, '  told = "reported";  // nobody'),
    (python_strings, '"""What it said."""\nx = row["told"]  # wanted'),
]


NAMES_AT_FAULT = ["for each in x: pass", "told = 1", "def f(most): pass", "LEAST, X = 1, 2", "a.kept = 1", "[said_word for said_word in x]", "class Told: pass"]
NAMES_FINE = ["at_most_once_a_step_it_is_told = 1", "x = told", "f(most=1)", "row = {'kept': 1}", "each_rank = 1"]


def main():
    found = list(check(Path(sys.argv[1])))
    found += [f"words.py: does not notice: {line}" for line in NAMES_AT_FAULT if not list(names_at_fault("x", line))]
    found += [f"words.py: refuses what is fine: {line}" for line in NAMES_FINE if list(names_at_fault("x", line))]
    found += [f"words.py: does not notice: {line}" for cut, line in PLANTS if not list(faults("x", cut(line)))]
    found += [f"words.py: refuses what is fine: {line}" for cut, line in FINE if list(faults("x", cut(line)))]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
