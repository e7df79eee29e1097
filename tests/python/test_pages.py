"""Pages of bench/results do not drift: each is what its script makes of what is kept beside it. And what is kept can be measured again."""

import importlib
import json
import pathlib
import re
import subprocess
import sys

import pytest

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "results"
sys.path.insert(0, str(RESULTS))
import ages  # noqa: E402
import pages  # noqa: E402
import runs  # noqa: E402
import which_plan_page  # noqa: E402

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


def words_of(path):
    """The strings of a C++ source, joined as the compiler joins them."""
    text = (RESULTS.parents[1] / path).read_text("utf-8")
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', text)).replace("\\n", " ")


def test_the_preset_recommended_has_the_seconds_of_which_plan():
    found, links = which_plan_page.results(), which_plan_page.LINKS
    seconds = {method: [found[method].seconds(link) for link in links] for method in ("lowrank4", "dense", "top1_log")}
    listed = {method: "{}, {} and {}".format(*of) for method, of in seconds.items()}
    words = words_of("lib/plan/named_plans.cpp")
    assert f"held-out loss of {which_plan_page.TARGET:g} in {listed['lowrank4']} s on an unshaped link" in words
    assert f"dense f32 in {listed['dense']} s, Top-1 % in {listed['top1_log']} (docs/PYTORCH.md)" in words


def test_what_predict_says_of_trainings_has_the_numbers_of_their_pages():
    models = re.split(r"^### (?=.*, 2 ranks: )", (RESULTS / "train.md").read_text("utf-8"), flags=re.M)[1:]

    def verdicts(method, residual):
        row = rf"^\| {method} \| {residual} \| [^|]+ \| ([=+−]) \|"
        return [match[1] for match in (re.search(row, model, flags=re.M) for model in models) if match]

    top_1, top_10, dropped = verdicts("Top-1 %, log_quant", "yes"), verdicts("Top-10 %, log_quant", "yes"), verdicts("Top-1 %, raw, no residual", "no")
    words = words_of("tool/predict/training_evidence.cpp")
    assert f"Top-1 % with a residual scored worse than dense on {top_1.count('−')} of {len(top_1)} models" in words
    assert f"Top-10 % with a residual was as good as dense on {len(top_10) - top_10.count('−')} of {len(top_10)} models" in words
    assert dropped == ["−"] * 4 and "Top-1 % without a residual scored worse than dense on all 4 models" in words
    found = which_plan_page.results()
    behind = {method: found[method].loss - found["dense"].loss for method in ("lowrank4", "bits8", "bits4")}
    assert f"rank 4 with a residual was {behind['lowrank4']:.3f} of loss behind dense" in words
    assert "8 and 4 bits with a residual were within 0.01 of dense's loss" in words and max(behind["bits8"], behind["bits4"]) < 0.01


def test_every_page_has_a_script_or_is_known_to_be_written_by_hand():
    made = {pathlib.Path(page).name for page in pages.PAGES if page.startswith(pages.FOLDER)}
    assert {path.name for path in RESULTS.glob("*.md")} == made | set(pages.BY_HAND)
    assert not made & set(pages.BY_HAND)


def test_a_page_that_was_changed_by_hand_is_named_with_the_line(tmp_path, monkeypatch, capsys):
    page = f"{pages.FOLDER}avx2.md"
    text = (RESULTS / "avx2.md").read_text("utf-8")
    (tmp_path / page).parent.mkdir(parents=True)
    (tmp_path / page).write_text(text.replace("NEON is not timed.", "NEON was timed."), "utf-8")
    made = pages.remade(page)
    monkeypatch.setattr(pages, "root", tmp_path)
    monkeypatch.setattr(pages, "remade", lambda _: made)
    assert pages.check([page]) == 1
    shown = capsys.readouterr().out
    assert "-NEON is" not in shown and "+NEON is not timed." in shown and f"{page} has drifted" in shown
    (tmp_path / page).write_text(text, "utf-8")
    assert pages.check([page]) == 0 and capsys.readouterr().out == ""
    with pytest.raises(SystemExit, match="no script makes calls.md"):
        pages.named(["calls.md"])


@pytest.fixture
def tree(tmp_path):
    """A repository: main has one commit, the branch `aside`, which is checked out, one more."""
    (tmp_path / "lib").mkdir()

    def git(*words):
        done = subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(name):
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "--quiet", "-m", name)
        return git("rev-parse", "--short=12", "HEAD")

    git("init", "--quiet", "--initial-branch=main")
    first = commit("lib/a")
    git("switch", "--quiet", "-c", "aside")
    return tmp_path, first, commit("lib/b")


def test_a_commit_that_main_does_not_have_is_refused(tree):
    folder, first, aside = tree
    assert runs.refuse_unrepeatable({"commit": first}, folder) == {"commit": first}
    for commit, words in ((aside, "main's history does not have"), ("0123456789ab", "main's history does not have"), (f"{first}-dirty", "not committed"), ("unversioned", "does not have")):
        with pytest.raises(SystemExit, match=words):
            runs.refuse_unrepeatable({"commit": commit}, folder)
    assert runs.is_in_main("HEAD~1", folder) and not runs.is_in_main("HEAD", folder)
    # Without a branch main there is nothing that a commit could be part of.
    subprocess.run(["git", "-C", folder, "branch", "--quiet", "-m", "main", "trunk"], check=True)
    assert not runs.is_in_main(first, folder)


def test_nothing_is_measured_in_a_tree_with_changes(tree):
    folder, _, _ = tree
    runs.refuse_changes(folder)
    (folder / "new").write_text("untracked files do not count")
    runs.refuse_changes(folder)
    (folder / "lib" / "a").write_text("changed")
    with pytest.raises(SystemExit, match="lib/a has changes"):
        runs.refuse_changes(folder)


def test_what_measuring_writes_is_no_change(tree):
    """So that the second benchmark of a series is not refused for the first one's results."""
    folder, _, _ = tree
    (folder / "bench" / "results").mkdir(parents=True)
    (folder / "bench" / "results" / "peers.json").write_text("{}")
    subprocess.run(["git", "-C", folder, "add", "bench"], check=True)
    runs.refuse_changes(folder)


@pytest.fixture
def history():
    _, shallow = runs.git(runs.root, "rev-parse", "--is-shallow-repository")
    if shallow != "false" or not runs.is_in_main("HEAD"):
        pytest.skip("no history of main here")


def test_what_is_kept_is_of_commits_that_main_has_or_is_listed(history):
    """And what is listed is named on the page that says how results are kept."""
    found = {path.name: ages.unrepeatable(path) for path in RESULTS.glob("*.json*")}
    assert {name: commits for name, commits in found.items() if commits} == ages.UNREPEATABLE
    page = (RESULTS / "README.md").read_text("utf-8")
    assert all(name in page for name in ages.UNREPEATABLE)


def test_what_the_first_pages_quote_and_is_old_is_named(tree, tmp_path, monkeypatch):
    folder, first, _ = tree
    (tmp_path / "one.json").write_text(json.dumps({"commit": first}))
    assert ages.old(["one.json"], tmp_path, folder) == []  # one commit is newer
    monkeypatch.setattr(ages, "LIMIT", 0)
    assert ages.old(["one.json"], tmp_path, folder) == ["one.json"]
    monkeypatch.setattr(ages, "old", lambda: ["one.json"])
    assert ages.lines()[-1] == "README.md and docs/RESULTS.md quote what is older than 0 commits: one.json"
    assert all((RESULTS / name).exists() for name in ages.QUOTED)


def test_the_age_of_a_commit_is_how_many_commits_of_the_library_are_newer(tree, tmp_path):
    folder, first, aside = tree
    assert ages.newer(first, folder) == ages.newer(f"{first}-dirty", folder) == ages.newer(f"v0.2.0-3-g{first}", folder) == 1
    assert ages.newer(aside, folder) == ages.newer("uncommitted", folder) == -1
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ({"commit": "a"}, {"links": [{"commit": "b"}]}, {"commit": "a"}, {"of": 1})))
    assert ages.named_by(path) == ["a", "b"]
    assert importlib.import_module("ages").lines()[0].startswith("Commits of lib, codecs, capi")
