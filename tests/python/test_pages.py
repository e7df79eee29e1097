"""Pages of bench/results do not drift: each is what its script makes of what is kept beside it."""

import pathlib
import sys

import pytest

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "results"
sys.path.insert(0, str(RESULTS))
import pages  # noqa: E402

OTHERS = ("torch", "matplotlib", "sklearn", "scipy")  # packages that a script may want, and its page cannot be made without


@pytest.mark.parametrize("page", pages.PAGES)
def test_a_page_is_what_its_script_makes_of_what_is_kept(page):
    try:
        lines = pages.difference(page)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in OTHERS:
            raise
        pytest.skip(f"{error.name} is not installed")
    assert not lines, f"{page} has drifted; python3 bench/results/pages.py writes it again:\n" + "\n".join(lines[: pages.SHOWN])


def test_every_page_has_a_script_or_is_known_to_be_written_by_hand():
    made = {pathlib.Path(page).name for page in pages.PAGES if page.startswith(pages.FOLDER)}
    assert {path.name for path in RESULTS.glob("*.md")} == made | set(pages.BY_HAND)
    assert not made & set(pages.BY_HAND)


def test_a_page_that_was_changed_by_hand_is_named_with_the_line(tmp_path, monkeypatch, capsys):
    page = f"{pages.FOLDER}avx2.md"
    text = (RESULTS / "avx2.md").read_text("utf-8")
    (tmp_path / page).parent.mkdir(parents=True)
    (tmp_path / page).write_text(text.replace("No NEON level.", "A NEON level."), "utf-8")
    made = pages.remade(page)
    monkeypatch.setattr(pages, "root", tmp_path)
    monkeypatch.setattr(pages, "remade", lambda _: made)
    assert pages.check([page]) == 1
    shown = capsys.readouterr().out
    assert "-No" not in shown and "+No NEON level." in shown and f"{page} has drifted" in shown
    (tmp_path / page).write_text(text, "utf-8")
    assert pages.check([page]) == 0 and capsys.readouterr().out == ""
    with pytest.raises(SystemExit, match="no script makes calls.md"):
        pages.named(["calls.md"])
