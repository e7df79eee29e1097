"""The site's parts: every declaration of the C headers has its place, and a broken link is found. `./dev docs --check` builds all of it."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))
import build_site  # noqa: E402
import c_headers  # noqa: E402
import html_links  # noqa: E402

TEXTS = {name: (ROOT / "include/deepreduce" / name).read_text(encoding="utf-8") for name in build_site.HEADERS}
NAMES = set().union(*map(c_headers.declared_names, TEXTS.values()))


def test_every_function_struct_and_constant_of_the_headers_has_its_place():
    plain = re.sub(r"/\*.*?\*/", " ", "\n".join(TEXTS.values()), flags=re.S)
    functions = set((ROOT / "tests/abi/symbols.txt").read_text(encoding="utf-8").split())
    inline = {name for name in re.findall(r"^static inline [^({]*?(\w+)\(", plain, flags=re.M) if not name.endswith("_")}
    structs = {name for name in re.findall(r"^typedef struct (\w+)", plain, flags=re.M) if not name.endswith("_")}
    layout = (ROOT / "tests/abi/layout.cpp").read_text(encoding="utf-8")
    constants = {name for name in re.findall(r"^VALUE\((\w+),", layout, flags=re.M) if not name.startswith("DR_DTYPE_BIT")}
    assert len(functions) > 50 and len(inline) > 5 and len(structs) > 30 and len(constants) > 100
    assert functions | inline | structs | constants | {"dr_plugin_fn", "dr_dtype"} <= NAMES


def test_every_field_has_its_place():
    layout = (ROOT / "tests/abi/layout.cpp").read_text(encoding="utf-8")
    pages = "\n".join(c_headers.page(name, text, NAMES) for name, text in TEXTS.items())
    parts = dict(re.findall(r"^\.\. c:struct:: (\w+)\n(.*?)(?=^\S|\Z)", pages, flags=re.S | re.M))
    for struct, field in re.findall(r"^FIELD\((\w+), (\w+),", layout, flags=re.M):
        assert re.search(rf"^ +(?:\.\. c:member::)? .*\b{field}\b", parts[struct], flags=re.M), (struct, field)


def test_every_comment_of_the_headers_is_on_a_page():
    """Word by word, but for the bodies of inline functions and for private names."""
    for name in ("codec.h", "deepreduce.h", "exchange.h", "transform.h", "control.h"):
        page = c_headers.page(name, TEXTS[name], NAMES)
        words = set(re.findall(r"[a-z]{4,}", page))
        text = re.sub(r"\) \{\n.*?^\}", "", TEXTS[name], flags=re.S | re.M)
        for comment in re.findall(r"/\*(.*?)\*/", text, flags=re.S):
            missing = set(re.findall(r"[a-z]{4,}", comment)) - words
            assert not missing, (name, comment)


def test_a_comment_belongs_to_what_it_stands_at():
    header = """/* ---- Things ---- */

/* Makes one: dr_thing, `n` of them. */
DR_API dr_thing *dr_make(size_t n); /* never NULL */
enum {
  DR_ONE = 1, /* the first */
  DR_TWO = 2  /* the second, and last */
};
typedef struct dr_thing {
  uint64_t begin, end; /* bytes */
  /* Called back. */
  void (*call)(void *user, int);
} dr_thing;
"""
    page = c_headers.page("thing.h", header, {"dr_thing", "DR_ONE"})
    assert "Things\n------" in page
    assert ".. c:function:: dr_thing *dr_make(size_t n)\n\n   Makes one: :c:expr:`dr_thing`, ``n`` of them.\n\n   never NULL" in page
    assert ".. c:enumerator:: DR_ONE = 1\n\n   the first\n" in page
    assert ".. c:enumerator:: DR_TWO = 2\n\n   the second, and last\n" in page
    assert "   .. c:member:: uint64_t begin\n                 uint64_t end\n\n      bytes\n" in page
    assert "   .. c:member:: void (*call)(void *user, int)\n\n      Called back.\n" in page


GOOD = '<a href="b.html#here">b</a> <img src="x.png"> <a href="https://example.org/x">far</a> <a href="#top" id="top">up</a>'


@pytest.mark.parametrize(
    "page, fault",
    [
        (GOOD, None),
        (GOOD + '<a href="gone.html">', "a.html: the link to gone.html leads nowhere"),
        (GOOD + '<a href="b.html#gone">', "a.html: b.html#gone: there is no such place in the page"),
        (GOOD + '<img src="gone.png">', "a.html: the link to gone.png leads nowhere"),
    ],
)
def test_a_broken_link_is_found(tmp_path, page, fault):
    (tmp_path / "a.html").write_text(page)
    (tmp_path / "b.html").write_text('<p id="here"><a href="sub/">sub</a>')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/index.html").write_text('<a href="../a.html">')
    (tmp_path / "x.png").write_bytes(b"")
    broken, external = html_links.check(tmp_path)
    assert broken == ([fault] if fault else [])
    assert external == ["https://example.org/x"]


def test_a_column_of_names_may_have_longer_ones():
    source = (ROOT / "docs/site/conf.py").read_text(encoding="utf-8")
    names = {"re": re}
    exec(source[source.index("def columns") : source.index("def escaped")], names)
    columns = names["columns"]
    assert columns(["x     an array", "      of numbers", "plan  a plan", "a, b, c, d  four more"]) == [
        ["x", "an array of numbers"], ["plan", "a plan"], ["a, b, c, d", "four more"]]
    assert columns(["ranks, rank  numbers", "weights      of each", "dense_below tensors of fewer"]) == []
    assert columns(["for step in range(3):", "    ...        # work", "    update()"]) == [] == columns(["A sentence of two", "lines."])


def test_all_of_the_package_has_a_page():
    pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
    pages = build_site.package_pages()  # exits where a public name is on no page, or on two
    index = (ROOT / "docs/site/index.rst").read_text(encoding="utf-8")
    assert len(pages) == 6
    for name, page in pages.items():
        assert f"   reference/{name}\n" in index and page.startswith("Python: ")
    assert ".. autoexception:: deepreduce.PlanError" in pages["python_errors"]
    assert ".. autoclass:: deepreduce.Rows\n   :members:" in pages["python_compare"]


def test_no_page_is_no_site(tmp_path):
    assert html_links.check(tmp_path)[0] == [f"{tmp_path.resolve()}: no page"]


def test_the_index_names_every_page():
    """Sphinx warns of a page that no list has; here without Sphinx."""
    index = (ROOT / "docs/site/index.rst").read_text(encoding="utf-8")
    patterns = [re.escape(pattern_).replace(r"\*", "[^/]*") for pattern_ in re.findall(r"^   (?:\S.* <)?([^:\s<>]+)>?$", index, flags=re.M)]
    for page in build_site.tracked("*.md"):
        name = str(page.with_suffix(""))
        assert any(re.fullmatch(pattern, name) for pattern in patterns), f"docs/site/index.rst lacks {name}"
