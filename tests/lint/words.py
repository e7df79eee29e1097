#!/usr/bin/env python3
"""Public documents and error texts are in plain English: words that readers stumble over have a plain one in their place.

    words.py TREE     prints each line with such a word, as file:line: sentence. Exit 1 if there is one, or if a planted one goes unnoticed

Only words without a legitimate use in these texts are listed. Code in a document (between backquotes, or indented) is not looked at.
"""
import re
import sys
from pathlib import Path

DOCUMENTS = ("*.md", "docs/*.md", "include/**/*.md", "lib/**/*.md", "codecs/**/*.md", "examples/*.md", "datasets/*.md")
EXEMPT = ("CHANGELOG.md",)  # what was released is not rewritten
HEADERS = ("include/**/*.h", "include/**/*.hpp")  # all of them are documentation
SOURCES = ("lib/**/*.?pp", "lib/**/*.cu", "capi/*.?pp", "codecs/**/*.?pp", "tool/**/*.?pp")  # their string literals

RULES = [
    (r"told", "reported, sent, informed"),
    (r"said", "stated, reported"),
    (r"came", "arrived, was"),
    (r"wanted", "requested, needed"),
    (r"anew", "again"),
    (r"whoever|somebody|nobody", "who it is: a rank, a caller, no caller"),
    # "is no text", but neither "there is no text" nor "is no larger"
    (r"(?<!there )(?:is|are) no (?!\w+er\b|more\b|less\b|worse\b|doubt\b|\w+ (?:in|of) (?:it|them)\b)\w+", "is not a"),
]
FOUND_BY = [(re.compile(rf"\b(?:{words})\b", re.IGNORECASE), plain) for words, plain in RULES]
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


PLANTS = [
    (prose, "Each rank is told of the fault."),
    (prose, "A pattern that is no text is refused."),
    (prose, "  Then the batch is prepared anew."),
    (strings, '    return fail(error, DR_E_ARGUMENT, "tensor %zu: this is no tensor", i);'),
    (strings, '  fail(error, DR_E_TIMEOUT, "rank %u came too late", rank);'),
    (strings, '  const char* text = "the frame that was \\"wanted\\"";'),
]
FINE = [
    (prose, "If there is no plan, a frame is no larger than the dense tensor; `nobody` is a name."),
    (prose, "    x = told()"),
    (strings, '  told = "reported";  // nobody'),
]


def main():
    found = list(check(Path(sys.argv[1])))
    found += [f"words.py: does not notice: {line}" for cut, line in PLANTS if not list(faults("x", cut(line)))]
    found += [f"words.py: refuses what is fine: {line}" for cut, line in FINE if list(faults("x", cut(line)))]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
