"""The public C headers as pages of the C domain of Sphinx: each comment beside the declaration that it stands at.

The headers are plain C with prose, so a few regular expressions read them. tests/python/test_docs_site.py compares what is found with the
functions, structs and constants that the tests of the ABI find.
"""

import re
import textwrap
from typing import Iterator, List, Set, Tuple

COMMENT = re.compile(r"/\*(.*?)\*/", re.S)
SECTION = re.compile(r"\s*-{3,} (.*?) -{3,}\s*$", re.S)
DEFINE = re.compile(r"#define (DR_\w+)(\([^)]*\))?(?:[ \t]+(?P<value>(?:\\\n|[^\n/]|/(?!\*))*))?")


def page(name: str, text: str, names: Set[str], about: str = "") -> str:
    """reStructuredText of a header. names: what may be linked to (declared_names of all headers). about: what the title says of it"""
    title = f"{name}: {about}" if about else name
    lines = [title, "=" * len(title), "", f".. code-block:: c\n\n   #include <deepreduce/{name}>", ""]
    for block in items(text, names):
        lines += block
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def declared_names(text: str) -> Set[str]:
    """Functions, structs, types, constants and macros with a place on the header's page."""
    return set(re.findall(r"^ *\.\. c:(?:function|struct|type|enumerator|macro):: .*?\b((?:dr|DR)_\w+)(?= = |[()]|$)", page("", text, set()), flags=re.M))


# ---- Prose --------------------------------------------------------------------------------------


def prose(comment: str, names: Set[str]) -> List[str]:
    """The lines of a comment as reStructuredText: paragraphs, lists, and literal text where it is indented."""
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in comment.strip().split("\n")]
    if len(lines) == 1 or not comment.lstrip().startswith("*") and "\n *" not in comment:
        lines = [line.strip() for line in lines]  # a trailing comment over several lines
    found: List[str] = []
    in_list = literal = False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if not line:
            in_list = literal = False
            found.append("")
        elif line.startswith("- "):
            if not in_list:
                found.append("")
            in_list, literal = True, False
            found.append("- " + marked(line[2:], names))
        elif indent >= 2 and not in_list:
            if not literal:
                found += ["", ".. code-block:: text", ""]
            literal = True
            found.append("   " + line)
        else:
            if literal:
                found.append("")
            if in_list and not indent:
                found.append("")
            literal, in_list = False, in_list and indent > 0
            found.append(("  " if in_list else "") + marked(line.strip(), names))
    return found


def marked(text: str, names: Set[str]) -> str:
    """Escapes what reStructuredText would read; names of this header become links, `words` code."""
    parts = re.split(r"(`[^`]+`)", text)
    for i, part in enumerate(parts):
        if part.startswith("`") and len(part) > 2:
            parts[i] = f"``{part[1:-1]}``"
            continue
        part = re.sub(r"([\\*|`])", r"\\\1", part)
        part = re.sub(r"(?<=\w)_(?!\w)", r"\\_", part)
        parts[i] = re.sub(r"(?<![\w<:.])(dr_\w+|DR_\w+)(?![\w\\])(?=(.?))", lambda m: link(m[1], m[2], names), part)
    return "".join(parts)


def link(name: str, following: str, names: Set[str]) -> str:
    if name not in names:
        return name
    return f":c:expr:`{name}`" + (r"\ " if following and following not in " ).,:;-/'\"" else "")  # (what may follow a role)


# ---- Declarations -------------------------------------------------------------------------------


def items(text: str, names: Set[str]) -> Iterator[List[str]]:
    """Prose, headings and declarations in the order of the header."""
    at, pending = 0, ""
    while at < len(text):
        rest = text[at:]
        if match := re.match(r"\s+", rest):
            if "\n\n" in match[0] and pending:
                yield ["", *prose(pending, names), ""]
                pending = ""
            at += match.end()
        elif match := COMMENT.match(rest):
            if pending:
                yield ["", *prose(pending, names), ""]
            pending = match[1]
            if section := SECTION.match(pending):
                heading = section[1].strip()
                yield ["", heading, "-" * len(heading), ""]
                pending = ""
            at += match.end()
        elif rest.startswith("#"):
            define = DEFINE.match(rest)
            at += define.end() if define else re.match(r"(?:\\\n|[^\n])*", rest).end()  # type: ignore[union-attr]
            if define and define["value"] and define[1] != "DR_API" and not define[1].endswith("_"):
                at, words = trailing(text, at, pending)
                pending = ""
                value = " ".join(define["value"].replace("\\\n", " ").split())
                yield directive("macro", [define[1] + (define[2] or "")], [f"``{value}``", "", *prose(words, names)])
        elif match := re.match(r'extern "C" \{|\}|__host__ __device__', rest):
            at += match.end()
        else:
            end = declaration_end(rest)
            source, at = rest[:end], at + end
            at, words = trailing(text, at, pending)
            pending = ""
            yield from declaration(source, words, names)
    if pending:
        yield ["", *prose(pending, names), ""]


def declaration_end(rest: str) -> int:
    """Behind the `;` that ends a declaration, or the `}` that ends a function."""
    depth, at = 0, 0
    plain = COMMENT.sub(lambda m: " " * len(m[0]), rest)
    while at < len(plain):
        letter = plain[at]
        depth += (letter in "{(") - (letter in "})")
        at += 1
        if depth == 0 and (letter == ";" or letter == "}" and is_function(plain[:at])):
            return at
    return len(rest)


def is_function(source: str) -> bool:
    return "(" in source.partition("{")[0] and not source.startswith("typedef")


def trailing(text: str, at: int, pending: str) -> Tuple[int, str]:
    """Adds the comment behind a declaration, on its line, to the one before it."""
    match = re.match(r"[ \t]*/\*(.*?)\*/", text[at:], flags=re.S)
    if not match:
        return at, pending
    return at + match.end(), (pending + "\n\n" if pending.strip() else "") + match[1]


def declaration(source: str, words: str, names: Set[str]) -> Iterator[List[str]]:
    plain = " ".join(COMMENT.sub(" ", source).split())
    if match := re.match(r"typedef struct (\w+) \{(.*)\} \1;$", source, flags=re.S):
        if not match[1].endswith("_"):
            yield directive("struct", [match[1]], [*prose(words, names), "", *members(match[2], names)])
    elif match := re.match(r"typedef struct (\w+) \1;$", plain):
        yield directive("struct", [match[1]], ["Opaque.", "", *prose(words, names)])
    elif match := re.match(r"enum (\w+ )?\{(.*)\};$", source, flags=re.S):
        body = enumerators(match[2], names)
        if body:
            yield ["", *prose(words, names), "", *body]
    elif match := re.match(r"typedef (.*?)(\w+);$", plain):
        yield directive("type", [f"{match[1]}{match[2]}"], prose(words, names))
    elif match := re.match(r"typedef .*\(\*(\w+)\)", plain):
        yield directive("type", [plain[len("typedef ") : -1]], prose(words, names))
    elif match := re.match(r"(?:DR_API |static inline )?(.*?\b(\w+)\(.*?\))(?:;| \{.*)$", plain):
        if not match[2].endswith("_"):
            yield directive("function", [match[1]], prose(words, names))


def directive(kind: str, signatures: List[str], body: List[str]) -> List[str]:
    first = f".. c:{kind}:: {signatures[0]}"
    more = [" " * (first.index(":: ") + 3) + each for each in signatures[1:]]
    return ["", first, *more, "", *(textwrap.indent("\n".join(body), "   ").split("\n")), ""]


def parts_of(body: str, end: str) -> Iterator[Tuple[str, str]]:
    """(declaration, comment) of the members of a struct or an enum. A comment belongs to what stands before it on its line, or else to
    what follows."""
    at, pending = 0, ""
    while at < len(body):
        rest = body[at:]
        if match := re.match(r"\s+", rest):
            at += match.end()
        elif match := COMMENT.match(rest):
            pending = (pending + "\n\n" if pending else "") + match[1]
            at += match.end()
        else:
            depth, stop = 0, 0
            while stop < len(rest) and not (depth == 0 and rest[stop] == end):
                depth += (rest[stop] == "(") - (rest[stop] == ")")
                stop = rest.index("*/", stop) + 2 if rest.startswith("/*", stop) else stop + 1
            source = rest[:stop].strip()
            inner = COMMENT.search(source)  # the last of an enum has no comma behind it
            if inner:
                source, pending = source[: inner.start()].strip(), (pending + "\n\n" if pending else "") + inner[1]
            at, pending = trailing(body, at + stop + 1, pending)
            yield " ".join(source.split()), pending
            pending = ""


def members(body: str, names: Set[str]) -> Iterator[str]:
    for source, words in parts_of(body, ";"):
        signatures = [source]
        if "," in source and "(" not in source:
            first, *others = source.split(",")
            base = re.match(r"(.*?)\**\w+$", first.strip())[1].strip()  # type: ignore[index]
            signatures = [first, *(f"{base} {each.strip()}" for each in others)]
        yield from directive("member", [each.strip() for each in signatures], prose(words, names))


def enumerators(body: str, names: Set[str]) -> List[str]:
    lines: List[str] = []
    for source, words in parts_of(body, ","):
        if not source.partition(" ")[0].endswith("_"):
            lines += directive("enumerator", [source], prose(words, names))
    return lines
