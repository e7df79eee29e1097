"""What the page of `compare --report` answers first: a plan, three numbers, its charts; on desktop and phone."""

import math
import re

import pytest

import chromium
from report_pages import PLANS, TENSORS, TOP, changed, choose, embedded, marks, plan_rows
from tool_runs import compare, needs_tool, run, write_npy, write_npz

pytestmark = [needs_tool, pytest.mark.skipif(not chromium.PROGRAM, reason="there is no chromium here ('./dev setup all' installs it)")]

TILES = "[...document.querySelectorAll('#tiles > div')].map((t) => [t.querySelector('strong').textContent, t.querySelector('dt').textContent])"
CHOSEN = "document.getElementById('plan').value"
LIMIT = "[document.getElementById('measure').value, Number(document.getElementById('limit').value)]"
LABELS = "[...Chart.getChart(document.querySelector('#split-chart canvas')).scales.y.ticks].map((t) => [t.label].flat().join(' '))"


def wave(folder, name, size, seed=1):
    return write_npy(folder / f"{name}.npy", [math.sin(seed + j * j) ** 3 for j in range(size)])


def models(folder, count=2, of=compare, **settings):
    """Files of `count` models, compared: (page, document)."""
    files = [write_npz(folder / f"m{i}.npz", w=wave(folder, f"w{i}", 3000 * (1 + i), i), b=wave(folder, f"b{i}", 500, i)) for i in range(count)]
    of(*files, "--per-tensor", "--report", folder / "page.html", **settings)
    return folder / "page.html", embedded(folder / "page.html")


def test_three_tiles_have_the_numbers_of_the_chosen_plan(browser, report):
    browser.open(report[0])
    plan = browser.run(CHOSEN)
    rows = [row for row in plan_rows(report[1]) if row["plan"] == plan]
    size, dense = sum(row["bytes"] for row in rows), 4 * sum(row["d"] for row in rows)
    energy = sum(row["kept_energy"] for row in rows)
    error = math.sqrt(sum(row["relative_l2_error"] ** 2 * row["kept_energy"] for row in rows) / energy)
    (smaller, first), (coding, second), (rate, third) = browser.run(TILES)
    assert (first, second, third) == ("smaller", "coding error", "pays below")
    assert float(smaller[1:]) == pytest.approx(dense / size, rel=0.01) and smaller[0] == "×"
    assert coding == ("exact" if error == 0 else f"{float(f'{100 * error:.2g}'):g} %")
    assert rate == "never" or rate.endswith("bit/s")
    choose(browser, "plan", PLANS[0])
    assert browser.run(TILES)[1] == ["exact", "coding error"]
    assert browser.run("document.getElementById('best').textContent").endswith("your choice.")
    choose(browser, "plan", PLANS[2])
    assert browser.run(TILES)[1][0] != "exact" and browser.errors == []


def test_the_chosen_plan_is_the_smallest_of_the_usual_sparsifier_by_coding_error(browser, tmp_path):
    plans = [f"sparsify=topr(ratio={ratio}) index=golomb value={value}" for ratio in (0.001, 0.01, 0.1) for value in ("raw", "log_quant", "qsgd(levels=3)")]
    page, document = models(tmp_path, 1, plans=plans)
    browser.open(page)
    assert browser.run(CHOSEN) == plans[4] and browser.run(LIMIT) == ["relative_l2_error", 0.07]
    assert "only training shows" in browser.run("document.getElementById('best').textContent")
    assert browser.errors == []


def test_models_in_several_files_are_not_added_up(browser, tmp_path):
    page, document = models(tmp_path, plans=PLANS[:2])
    browser.open(page)
    assert browser.run("document.getElementById('scope').value") == '["m0.npz"]'
    assert not browser.run("[...document.querySelectorAll('#scope option')].some((o) => o.value === '')")
    first = [row for row in plan_rows(document) if row["input"] == "m0.npz"]
    points = browser.run("Chart.getChart(document.querySelector('#error-chart canvas')).data.datasets[0].data.map((p) => p.x)")
    assert sorted(points) == sorted(sum(row["bytes"] for row in first if row["plan"] == plan) for plan in PLANS[:2])
    assert browser.run("[...document.querySelectorAll('#files tbody th')].map((c) => c.textContent)") == ["m0.npz", "m1.npz"]
    browser.run("document.querySelectorAll('#files button')[1].click()")
    assert browser.run("document.getElementById('scope').value") == '["m1.npz"]' and browser.errors == []


def test_the_limit_is_the_number_that_best_asked_for_and_the_plan_its_answer(browser, tmp_path):
    for condition, column, number in (("total_error <= 0.5", "total_error", 0.5), ("coding < 0.2", "relative_l2_error", 0.2)):
        page, document = models(tmp_path, 1, of=lambda *files, **settings: compare(*files, "--best", condition, **settings), plans=PLANS)
        answer, = [a for a in document["best"] if a["scope"] == "model"]
        browser.open(page)
        assert browser.run(LIMIT) == [column, number] and browser.run(CHOSEN) == answer["total"]["plan"]
        assert condition in browser.run("document.getElementById('best').textContent")
    page, document = models(tmp_path, 1, of=lambda *files, **settings: compare(*files, "--best", "bytes < 9e9 and plan ~ '*rice*'", **settings), plans=PLANS)
    browser.open(page)
    assert browser.run(CHOSEN) == PLANS[4]
    # A changed limit is another question.
    browser.run("{ const l = document.getElementById('limit'); l.value = 0; l.dispatchEvent(new Event('input')); }")
    assert browser.run(CHOSEN) == PLANS[0] and browser.errors == []


def test_a_codec_has_its_colour_and_shape_in_every_report(browser, report, tmp_path):
    style = ("Chart.getChart(document.querySelector('#error-chart canvas')).data.datasets[0].data.map((p, i) => [p.row.plan,"
             " Chart.getChart(document.querySelector('#error-chart canvas')).data.datasets[0].backgroundColor[i], Chart.getChart(document.querySelector('#error-chart canvas')).data.datasets[0].pointStyle[i]])")

    def reversed_rows(document):
        document["rows"] = [row for row in reversed(document["rows"]) if row["plan"] != PLANS[0]]

    def no_codec_of_ours(document):
        for i, row in enumerate(plan_rows(document)):
            row["plan"] = f"sparsify=topr(ratio=0.05) index=mine_{i % 20} value=raw"

    browser.open(report[0])
    before = {plan: look for plan, *look in browser.run(style)}
    browser.open(changed(report, tmp_path, reversed_rows))
    after = {plan: look for plan, *look in browser.run(style)}
    assert len(after) == len(PLANS) - 1 and all(before[plan] == look for plan, look in after.items())
    assert len({look[0] for plan, look in before.items() if "bloom" in plan or "golomb" in plan}) == 2
    browser.open(changed(report, tmp_path, no_codec_of_ours))
    assert browser.errors == []


def test_the_time_of_a_call_has_a_logarithmic_axis_and_each_label_differs(browser, tmp_path):
    plans = [f"{TOP}index=bloom(policy=p0,fpr={fpr}) value=uniform_quant(bits={bits})".replace("0.05", ratio) for ratio in ("0.01", "0.1") for fpr in ("0.01", "0.001") for bits in (4, 6)]
    page, document = models(tmp_path, 1, plans=plans)
    for width in (1400, 390):
        browser.open(page, width=width)
        assert browser.run("Chart.getChart(document.querySelector('#split-chart canvas')).scales.x.type") == "logarithmic"
        assert marks(browser, "split-chart") == len(plans)
        labels = browser.run(LABELS)
        assert len(set(labels)) == len(plans), labels
        assert all(re.match(r"topr\(10?%\)", label) and label.endswith(("(4)", "(6)")) for label in labels), labels
    assert browser.errors == []


def test_the_first_chart_shows_the_error_that_varies(browser, tmp_path):
    error = "document.getElementById('error').value"
    page, document = models(tmp_path, 1, plans=[*PLANS[:3], "index=all value=half"])
    browser.open(page)
    assert browser.run(error) == "relative_l2_error"
    page, document = models(tmp_path, 1, plans=PLANS)
    browser.open(page)
    assert browser.run(error) == "total_error" and browser.errors == []


def test_the_data_is_that_of_the_largest_tensor_under_the_chosen_plan(browser, report):
    shown = "document.getElementById('subject').selectedOptions[0].textContent"
    browser.open(report[0])
    for plan in (PLANS[4], PLANS[0]):
        choose(browser, "plan", plan)
        assert TENSORS[2] in browser.run(shown) and browser.run(shown).endswith(plan.split()[0])
    choose(browser, "subject", "0")
    choose(browser, "plan", PLANS[4])
    assert browser.run("document.getElementById('subject').value") == "0"
    sizes = browser.run("Chart.getChart(document.querySelector('#magnitudes-chart canvas')).data.labels")
    assert all(re.fullmatch("2⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+", size) for size in sizes) and browser.errors == []


def test_scores_of_this_projects_models_are_hidden_and_labelled(browser, report):
    browser.open(report[0])
    assert not browser.run("document.querySelector('#training-chart').checkVisibility()")
    assert browser.run("document.querySelector('#training summary').textContent").startswith("Other models than yours")
    browser.run("document.querySelector('#training summary').click()")
    browser.settle()
    assert browser.run("document.querySelector('#training-chart canvas').getBoundingClientRect().height") > 100 and browser.errors == []


def test_no_folder_is_in_the_page(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    files = [write_npz(folder / "g.npz", w=wave(folder, "w", 3000)) for folder in (tmp_path, inner)]
    page = tmp_path / "page.html"
    compare(*files, wave(tmp_path, "other", 2000), "--report", page, plans=PLANS[:1])
    assert str(tmp_path) not in page.read_text("utf-8")
    assert [row["input"] for row in plan_rows(embedded(page))] == [f"{tmp_path.name}/g.npz", "inner/g.npz", "other.npy"]


def test_the_total_of_a_book_is_in_the_page_by_the_books_name(browser, tmp_path):
    """The page had no plan then, as each lacks tensors, and the book's folder."""
    inner = tmp_path / "inner"
    inner.mkdir()
    file = write_npz(tmp_path / "g.npz", a=wave(tmp_path, "a", 3000), b=wave(tmp_path, "b", 2000))
    book, page = inner / "x.book", tmp_path / "page.html"
    book.write_text(f"a: {PLANS[0]}\n*: dense\n", "utf-8")
    run("compare", file, "--book", book, "--repeat", 2, "--report", page)
    document = embedded(page)
    total, = (total for total in document["totals"] if total["plan"].startswith("book "))
    assert total["plan"] == "book x.book" and str(inner) not in page.read_text("utf-8")
    browser.open(page)
    assert browser.run("document.getElementById('best').textContent").startswith("book x.book: the smallest")
    assert browser.run("document.getElementById('coverage').textContent").startswith("1 plan; on 2 tensors: ")
    assert "left out" not in browser.run("document.getElementById('coverage').textContent")
    assert browser.run("document.querySelector('#tiles strong').textContent") == f"×{4 * 5000 / total['bytes']:.3g}" and browser.errors == []


def test_the_glossary_explains_each_entry_and_the_table_the_marked_row(browser, report):
    browser.open(report[0])
    entries = browser.run("[...document.querySelectorAll('#glossary dt')].map((t) => [t.textContent, t.nextSibling.textContent])")
    assert len(entries) > 40 and all(text for _, text in entries)
    assert not any(re.search(r"\((bytes|ns|bits|bit/s)\)$", text) for _, text in entries)
    key = "getComputedStyle(document.querySelector('.chosen-key')).backgroundColor"
    assert browser.run(f"{key} === getComputedStyle(document.querySelector('#rows tr.chosen td')).backgroundColor")
    assert "the chosen plan" in browser.run("document.querySelector('.chosen-key').parentElement.textContent")


@pytest.mark.parametrize("width", [390, 1400])
def test_the_verdict_comes_first_then_the_chart_then_the_controls(browser, report, width):
    browser.open(report[0], width=width)
    tops = browser.run("['tiles', 'error-chart', 'controls', 'rows'].map((id) => document.getElementById(id).getBoundingClientRect().top)")
    assert tops == sorted(tops) and tops[0] < width / 10 + 420
    # In a tile no number is wider than the tile.
    assert browser.run("[...document.querySelectorAll('#tiles strong')].every((t) => t.scrollWidth <= t.parentElement.parentElement.clientWidth)")
    # The plan's column and two more fit.
    assert browser.run("(() => { const box = document.getElementById('rows').getBoundingClientRect(); return [...document.querySelectorAll('#rows thead th')].filter((h) => h.getBoundingClientRect().right <= box.right + 1).length; })()") >= 3


def test_marks_of_an_axis_do_not_collide_on_a_phone(browser, report, tmp_path):
    def wide(document):
        for i, row in enumerate(plan_rows(document)):
            row["bytes"] = round(row["bytes"] * 3.7 ** (i % len(PLANS)))

    collisions = """[...document.querySelectorAll('canvas')].map((c) => Chart.getChart(c)).filter(Boolean).flatMap((chart) => {
      const { x } = chart.scales, context = chart.ctx;
      context.font = Chart.helpers.toFont(x.options.ticks.font).string;
      const labels = x.ticks.map((t, i) => [x.getPixelForTick(i), String(t.label ?? '')]).filter(([, text]) => text).map(([at, text]) => [at, context.measureText(text).width, text]);
      return labels.slice(1).filter(([at, width], i) => at - width / 2 < labels[i][0] + labels[i][1] / 2 + 2).map(([,, text]) => [chart.canvas.parentElement.parentElement.id, text]);
    })"""
    for page in (report[0], changed(report, tmp_path, wide)):
        for width in (390, 320, 1400):
            browser.open(page, width=width)
            assert browser.run(collisions) == []
    assert browser.errors == []
