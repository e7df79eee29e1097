"""Plan books: the first pattern that matches counts, and what is wrong is named with its line."""

import fnmatch

import pytest

pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce import ArgumentError, Plan  # noqa: E402
from deepreduce.book import Book, as_book, parse, read  # noqa: E402

EXACT, TOP = "index=golomb value=raw", "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw"
TEXT = f"""\ufeff# made by hand
layer4.*:  {TOP} exchange=owner(parts=2)   # the large ones
*.bias: dense\r

[!l]*: {EXACT}
a:b*: {EXACT}
#*: dense
layer#1: dense
"""


def test_the_first_pattern_that_matches_counts():
    book = parse(TEXT)
    assert [pattern for pattern, _ in book] == ["layer4.*", "*.bias", "[!l]*", "a:b*", "layer#1"]
    assert book.plan_of("layer4.0.bias") == Plan(f"{TOP} exchange=owner(parts=2)")
    assert book.plan_of("layer1.bias") is None and book.plan_of("layer1.weight") is None
    assert book.plan_of("fc.weight") == Plan(EXACT)
    assert book.groups(["fc.weight", "layer1.bias", "a:b"]) == {Plan(EXACT): ["fc.weight", "a:b"], None: ["layer1.bias"]}


@pytest.mark.parametrize("pattern", ["*", "a?c", "[ab]*", "[!a]bc", "a[", "[[]x", "A*", "*b*c"])
@pytest.mark.parametrize("name", ["abc", "Abc", "[x", "a[", "ab/c", "b.b.c", ""])
def test_patterns_are_those_of_fnmatchcase(pattern, name):
    assert (parse(f"{pattern}: {EXACT}").plan_of(name) is not None) == fnmatch.fnmatchcase(name, pattern)


def test_a_book_comes_again_from_its_file(tmp_path):
    book = parse(TEXT)
    book.write(tmp_path / "plans.book", comment="predicted: 1.2 x\ntwo lines")
    assert (tmp_path / "plans.book").read_text("utf-8").startswith("# predicted: 1.2 x\n# two lines\nlayer4.*: sparsify")
    assert read(tmp_path / "plans.book") == book == parse(str(book)) == as_book(f"book:{tmp_path / 'plans.book'}")
    assert as_book(book) is book and as_book(EXACT) is None and as_book(None) is None
    assert parse("") == Book([]) and parse("").plan_of("x") is None


def test_a_book_that_cannot_be_written_leaves_nothing_beside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for path in ("folder", ".", "no/such/x.book"):
        with pytest.raises(OSError):
            parse(TEXT).write(path)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("text, sentence", [
    ("*: dense\nnonsense\n", "plans: line 2: 'nonsense' is not `pattern: plan`"),
    ("\n: dense", "plans: line 2: no pattern before the colon"),
    ("a:", "plans: line 1: pattern 'a': no plan after the colon"),
    ("# x\n\n*: index=none_such", "plans: line 3: pattern '\\*': plan: no index codec is called 'none_such'"),
])  # fmt: skip
def test_a_wrong_line_is_named(text, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        parse(text, "plans")


@pytest.mark.parametrize("pattern", ["", " a", "a\nb", "#a", "a #b"])
def test_what_a_line_cannot_hold_is_refused(pattern):
    with pytest.raises(ArgumentError, match="pattern"):
        Book([(pattern, None)])


def test_a_file_that_is_none_is_named(tmp_path):
    with pytest.raises(ArgumentError, match="nowhere.book: cannot be opened"):
        read("nowhere.book")
    with pytest.raises(ArgumentError, match="cannot be opened: it has a zero byte"):
        read("no\0where.book")
    (tmp_path / "x.book").write_bytes(b"*: dense\n\xff")
    with pytest.raises(ArgumentError, match="x.book: line 2: byte 1 is 0xff: a plan book is UTF-8"):
        as_book(f"book:{tmp_path / 'x.book'}")


def test_the_hooks_rules_are_those_of_the_book(tmp_path):
    pytest.importorskip("torch", reason="torch is missing: pip install torch")
    from deepreduce.torch._rules import Rules

    parse(f"*.bias: dense\n*: {TOP}\n").write(tmp_path / "x.book")
    for plan in (f"book:{tmp_path / 'x.book'}", read(tmp_path / "x.book"), {"*.bias": None, "*": TOP}):
        rules = Rules(plan, False)
        tensors = {"a.weight": ((200,), "float32"), "a.bias": ((200,), "float32"), "b.weight": ((50,), "float32")}
        sender = deepreduce.Sender(tensors, rules.book, dense_below=100, flat=rules.flat)
        assert rules.keep and sender.plan_of("a.weight") == Plan(TOP)
        assert sender.plan_of("a.bias") == Plan("bucket=flat index=all value=raw")
        small = Plan("bucket=flat feedback=residual index=all value=raw")  # with the feedback of its pattern's plan
        assert sender.plan_of("b.weight") == small


def test_a_pattern_without_tensors_is_told():
    pytest.importorskip("torch", reason="torch is missing: pip install torch")
    from deepreduce.torch._rules import Rules

    names = ["a.weight", "a.bias"]
    assert Rules(TOP, False).idle(names) == Rules({"*.bias": None, "a.*": TOP, "*": None}, False).idle(names) == []
    idle = Rules(parse("b.*: dense\na.*: dense\n*.bias: dense\n"), False).idle(names)
    assert len(idle) == 2 and "'b.*' matches no tensor" in idle[0] and "'*.bias' is never reached" in idle[1]
    assert "all tensors are dense" in Rules(parse("# none"), False).idle(names)[0]


def test_it_is_part_of_the_package():
    assert deepreduce.book.parse is parse
