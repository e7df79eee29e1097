"""The page of `compare --report` in headless Chromium: it opens, draws its rows, and is usable by keyboard."""

import base64
import json
import math
import re

import pytest

import chromium
from report_pages import HOSTILE, PLANS, SPARSIFIERS, TENSORS, changed, choose, embedded, front_of, marks, payment, plan_rows, table_rows, totals
from tool_runs import compare, needs_tool, refusal, write_npy, write_npz

pytestmark = [needs_tool, pytest.mark.skipif(not chromium.PROGRAM, reason="there is no chromium here ('./dev setup all' installs it)")]


@pytest.fixture
def opened(browser, report):
    browser.open(report[0])
    yield browser
    assert browser.errors == []


# ---- The tests ------------------------------------------------------------------------------------------

def test_the_page_asks_for_nothing_and_has_no_errors(opened, report):
    assert [url for url in opened.requests if not url.startswith("data:")] == [report[0].resolve().as_uri()]
    # Of the scripts only the two that the page has; none of the names of tensors and files.
    assert opened.run("[document.scripts.length, window.hacked ?? null, document.querySelectorAll('main img[onerror], main b').length]") == [5, None, 0]


def test_hostile_names_are_shown_as_text(opened):
    assert HOSTILE in opened.run("document.getElementById('rows').textContent")
    assert "<b onclick=hacked=3>&\"model'.npz" in opened.run("document.getElementById('facts').textContent")


def test_charts_have_the_marks_that_the_rows_have(opened, report):
    document = report[1]
    sums = totals(document)
    times = {plan: (sums[plan][0], sum(r["encode_ns"] + r["decode_ns"] for r in plan_rows(document) if r["plan"] == plan)) for plan in sums}
    for chart, points in (("error-chart", sums), ("time-chart", times)):
        assert marks(opened, chart) == table_rows(opened, chart) == len(PLANS)
        assert opened.run(f"Chart.getChart(document.querySelector('#{chart} canvas')).data.datasets[1].data.length") == len(front_of(list(points.values())))
    for chart, parts in (("bits-chart", 4), ("split-chart", 3)):
        assert opened.run(f"Chart.getChart(document.querySelector('#{chart} canvas')).data.datasets.length") >= parts
        assert marks(opened, chart) == table_rows(opened, chart) == len(PLANS)
    assert marks(opened, "layers-chart") == table_rows(opened, "layers-chart") == len(TENSORS)
    chosen = re.search(r"sparsify=(\S+)", opened.run("document.getElementById('plan').value"))[1]
    first, = [s for s in document["subjects"] if s["tensor"] == TENSORS[2] and s["sparsify"] == f"sparsify={chosen}"]  # the largest
    assert marks(opened, "gaps-chart") == marks(opened, "gaps-chart", 1) == len(first["gaps"]["log2"])
    assert marks(opened, "magnitudes-chart") == len(first["magnitudes"]["counts"])
    assert sum(first["gaps"]["log2"]) == sum(first["magnitudes"]["counts"]) == first["r"]
    models = json.loads(re.search(r'id="trained">(.*?)</script>', report[0].read_text("utf-8"), re.S)[1])["models"]
    opened.run("document.querySelector('#training details').open = true")
    opened.settle()
    for i, model in enumerate(models):
        choose(opened, "model", str(i))
        assert marks(opened, "training-chart") == table_rows(opened, "training-chart") == len(model["methods"])


def test_points_are_where_the_rows_say(opened, report):
    drawn = opened.run("Chart.getChart(document.querySelector('#error-chart canvas')).data.datasets[0].data.map((p) => [p.x, p.y])")
    assert drawn == [pytest.approx(point) for point in sorted(totals(report[1]).values())]


def test_the_coding_error_can_be_drawn_instead(opened, report):
    energies = {(s["tensor"], s["sparsify"]): s["kept_energy"] for s in report[1]["subjects"]}
    rows = [row for row in plan_rows(report[1]) if row["plan"] == PLANS[2]]
    weights = [energies[row["tensor"], "sparsify=" + SPARSIFIERS[0]] for row in rows]
    error = math.sqrt(sum(w * row["relative_l2_error"] ** 2 for w, row in zip(weights, rows)) / sum(weights))
    choose(opened, "error", "relative_l2_error")
    drawn = opened.run("Chart.getChart(document.querySelector('#error-chart canvas')).data.datasets[0].data.map((p) => [p.x, p.y])")
    assert [sum(row["bytes"] for row in rows), pytest.approx(error)] in drawn and len(drawn) == len(PLANS)


def test_the_verdict_names_the_plan_of_fewest_bytes_under_the_limit(opened, report):
    sums = totals(report[1])
    choose(opened, "measure", "total_error")
    for limit in (0.99, sorted(error for _, error in sums.values())[0] * 1.0001):
        opened.run(f"{{ const l = document.getElementById('limit'); l.value = {limit}; l.dispatchEvent(new Event('input')); }}")
        plan = min((p for p in sums if sums[p][1] <= limit), key=lambda p: sums[p][0])
        assert opened.run("document.querySelector('#best .plan').textContent") == plan
    opened.run("{ const l = document.getElementById('limit'); l.value = 0; l.dispatchEvent(new Event('input')); }")
    assert opened.run("document.querySelector('#best').textContent").startswith("No plan here has a total error of at most 0. The least is ")


def test_filters_select_rows_and_points(opened, report):
    choose(opened, "sparsify", SPARSIFIERS[1])
    assert marks(opened, "error-chart") == 1 and opened.run("document.querySelectorAll('#rows tbody tr').length") == 3
    choose(opened, "sparsify", "")
    opened.run("{ const t = document.getElementById('text'); t.value = 'golomb'; t.dispatchEvent(new Event('input')); }")
    assert marks(opened, "error-chart") == 2
    opened.run("{ const t = document.getElementById('text'); t.value = ''; t.dispatchEvent(new Event('input')); }")
    row = plan_rows(report[1])[0]
    choose(opened, "scope", json.dumps([row["input"], HOSTILE], separators=(",", ":")))
    assert opened.run("document.querySelectorAll('#rows tbody tr').length") == 1 + len(PLANS)
    assert opened.run("document.querySelector('#layers-chart .empty').textContent").startswith("One tensor is selected")


def test_light_and_dark_differ_and_all_text_can_be_read(browser, report):
    grounds = {}
    for dark in (False, True):
        browser.open(report[0], dark=dark)
        grounds[dark] = browser.run("getComputedStyle(document.body).backgroundColor")
        worst = browser.run(chromium.CONTRAST)
        assert worst["count"] > 100 and worst["ratio"] >= 4.5, worst
        for text in ("ink", "soft"):
            assert chromium.contrast(*(browser.run(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()") for name in (text, "ground"))) >= 4.5
        browser.run("document.getElementById('theme').click()")
        assert browser.run("getComputedStyle(document.body).backgroundColor") != grounds[dark]
        browser.run("document.getElementById('theme').click(); localStorage.clear()")
    assert grounds[False] != grounds[True] and browser.errors == []


@pytest.mark.parametrize("width", [400, 320, 1600])
def test_nothing_is_wider_than_the_window(browser, report, width):
    browser.open(report[0], width=width)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("Math.max(...[...document.querySelectorAll('canvas')].map((c) => c.getBoundingClientRect().right))") <= width
    browser.size(width // 2 + 200)
    browser.settle()
    assert browser.run("document.documentElement.scrollWidth") <= width // 2 + 200
    assert browser.errors == []


def test_points_are_reached_announced_and_chosen_by_keyboard(opened, report):
    plans = sorted(totals(report[1]).items(), key=lambda item: item[1])
    opened.run("document.querySelector('#error-chart canvas').focus()")
    opened.press("ArrowRight", "ArrowRight")
    announced = opened.run("document.getElementById('live').textContent")
    assert announced.startswith(f"2 of {len(plans)}: {plans[1][0]}.") and "total error" in announced
    assert opened.run("!document.querySelector('#error-chart .tip').hidden")
    opened.press("Enter")
    assert opened.run("document.getElementById('plan').value") == plans[1][0]
    assert opened.run("document.querySelectorAll('#rows tr.chosen').length") == len(TENSORS)
    opened.press("End", "ArrowRight")  # there is no further one
    assert opened.run("document.getElementById('live').textContent").startswith(f"{len(plans)} of {len(plans)}: ")
    opened.press("Escape")
    assert opened.run("document.querySelector('#error-chart .tip').hidden")


def test_the_table_is_sorted_by_keyboard(opened, report):
    sizes = sorted(row["bytes"] for row in report[1]["rows"])
    shown = "[...document.querySelectorAll('#rows tbody tr')].map((r) => r.textContent)"
    order = "document.querySelector('#rows th[data-column=\"plan\"]').getAttribute('aria-sort')"
    opened.run("document.querySelector('#rows th[data-column=\"plan\"] button').focus()")
    assert opened.run(order) == "none" and len(opened.run(shown)) == len(sizes)
    for direction, descending in (("ascending", False), ("descending", True)):
        opened.press("Enter")
        assert opened.run(order) == direction
        plans = opened.run("[...document.querySelectorAll('#rows tbody td.plan')].map((c) => c.firstChild.textContent)")
        assert plans == opened.run(f"{json.dumps(plans)}.sort((a, b) => {'-' if descending else ''}a.localeCompare(b, 'en', {{numeric: true}}))")
        assert len(set(plans)) == 1 + len(PLANS)
        assert opened.run("document.activeElement.closest('th').dataset.column") == "plan"  # where it was


def test_every_control_is_reached_by_tab_and_its_focus_is_seen(opened):
    visible = opened.run("[...document.querySelectorAll('button, input, select, canvas, summary, .scroll')].filter((e) => e.checkVisibility()).length")
    opened.run("document.activeElement.blur(); window.reached = new Set(); window.unseen = [];"
               "addEventListener('focusin', (e) => { reached.add(e.target); if (getComputedStyle(e.target).outlineStyle === 'none') unseen.push(e.target.outerHTML.slice(0, 80)); })")
    for _ in range(visible + 10):
        opened.press("Tab")
    missed = opened.run("[...document.querySelectorAll('button, input, select, canvas, summary, .scroll')].filter((e) => e.checkVisibility() && !reached.has(e)).map((e) => e.outerHTML.slice(0, 80))")
    assert missed == [] and opened.run("unseen") == []


def test_all_columns_are_in_the_table_and_in_the_glossary(opened, report):
    opened.run("document.getElementById('every').click()")
    heads = set(opened.run("[...document.querySelectorAll('#rows th')].map((h) => h.dataset.column)"))
    terms = set(opened.run("[...document.querySelectorAll('#glossary dt')].map((t) => t.textContent)"))
    columns = {name for row in report[1]["rows"] for name, cell in row.items() if not isinstance(cell, (dict, list))}
    assert columns <= terms
    assert {name for row in report[1]["rows"] for name in columns if row[name] is not None} <= heads


def test_the_verdict_says_whether_the_plan_pays_at_the_link(browser, report, tmp_path):
    def link(document):
        document.update(ranks=8, link={"bits_per_second": 1e9, "latency_ns": 50e3})
        for row in document["rows"]:
            row.update(step_ns=row["bytes"], dense_step_ns=10**6, bf16_step_ns=5 * 10**5, verdict="pays")

    browser.open(changed(report, tmp_path, link))
    assert payment(browser).startswith("It pays. At 1 Gbit/s, 50 µs and 8 ranks, its modelled exchange takes ")
    assert browser.run("[...document.querySelectorAll('#tiles strong')].at(-1).textContent") == "pays"
    assert browser.errors == []


def test_the_verdict_on_several_tensors_is_that_of_the_terminals_total(browser, report, tmp_path):
    words = {"pays": "It pays. ", "slower": "It does not pay. ", "even": "The difference is within the spread"}
    archive = write_npz(tmp_path / "g.npz", **{f"t{i}": write_npy(tmp_path / f"{i}.npy", [math.sin(j * j) ** 3 for j in range(2000 * 5**i)]) for i in range(3)})
    for rate in ("20Mb/s", "1Gb/s", "100Tb/s"):
        page = tmp_path / "page.html"
        document = compare(archive, "--per-tensor", "--link", rate, "--report", page, plans=PLANS[:1], repeat=5)
        total, = [total for total in document["totals"] if total["plan"] != "memcpy"]
        browser.open(page)
        assert payment(browser).startswith(words[total["verdict"]])
    document = compare(archive, "--per-tensor", "--report", page, plans=PLANS[:1], repeat=5)
    total, = [total for total in document["totals"] if total["plan"] != "memcpy"]
    browser.open(page)
    for dense, column in (("dense bf16", "pays_below_bf16"), ("dense f32", "pays_below")):
        assert float(re.search(dense + r" on links slower than ([\d.]+) Gbit/s", payment(browser))[1]) == pytest.approx(total[column] / 1e9, rel=1e-2)
    assert browser.errors == []


def test_what_a_plan_is_compared_with_has_the_type_of_the_input(browser, report, tmp_path):
    def short(document):
        document.update(ranks=8, link={"bits_per_second": 1e9, "latency_ns": 0})
        for row in document["rows"]:
            row.update(dtype="f16", step_ns=row["bytes"], dense_step_ns=10**6, bf16_step_ns=10**6, verdict="pays")

    def mixed(document):
        short(document)
        for row in plan_rows(document):
            row.update(dtype="f32" if row["tensor"] == TENSORS[0] else "f16", plan=row["plan"] + " exchange=owner(parts=2)")

    browser.open(changed(report, tmp_path, short))
    assert "that of dense f16 3 ms (a model: nothing overlaps)" in payment(browser)
    browser.open(changed(report, tmp_path, mixed))
    assert "that of the dense tensor in its own type 3 ms (a model: only its parts overlap)" in payment(browser)
    assert "f32's" not in browser.run("document.getElementById('glossary').textContent")
    assert browser.errors == []


def test_steps_of_one_training_are_not_added_up(browser, tmp_path):
    files = [write_npy(tmp_path / f"step{i}.npy", [math.sin(j + i) ** 3 for j in range(3000)]) for i in range(3)]
    page = tmp_path / "page.html"
    compare(*files, "--steps", 3, "--each-step", "--report", page, plans=[PLANS[0] + " feedback=residual"])
    rows = plan_rows(embedded(page))
    assert [row["step"] for row in rows] == [1, 2, 3] and len({row["input"] for row in rows}) == 3
    points = "Chart.getChart(document.querySelector('#error-chart canvas')).data.datasets[0].data.map((p) => [p.x, p.y])"
    browser.open(page)
    assert browser.run(points) == [pytest.approx([rows[2]["bytes"], rows[2]["total_error"]])]
    choose(browser, "scope", json.dumps([rows[0]["input"]], separators=(",", ":")))
    assert browser.run(points) == [pytest.approx([rows[0]["bytes"], rows[0]["total_error"]])]
    choose(browser, "scope", "")
    choose(browser, "step", "2")
    assert browser.run(points) == [pytest.approx([rows[1]["bytes"], rows[1]["total_error"]])]
    assert browser.errors == []


def test_why_an_error_is_not_known_is_told(browser, report, tmp_path):
    def unknown(document):
        for row in document["rows"]:
            row.update(total_error=None, contraction=None, relative_l2_error=None)

    def one_is_known(document):
        unknown(document)
        for row in document["rows"]:
            row["total_error"] = 0.5 if row["tensor"] == TENSORS[0] else None

    for change, sentence in ((unknown, "not known: a value is NaN or infinite"), (one_is_known, "select one tensor")):
        browser.open(changed(report, tmp_path, change))
        assert sentence in browser.run("document.getElementById('best').textContent")
        assert sentence in browser.run("document.querySelector('#error-chart .empty').textContent")
        assert browser.errors == []


def test_without_a_link_the_verdict_says_below_which_rate_it_pays(browser, report, tmp_path):
    def rates(document):
        for i, row in enumerate(plan_rows(document)):
            row["pays_below"], row["pays_below_bf16"] = 1e9 * (1 + i), 5e8 * (1 + i)

    def at_no_rate(document):
        for row in plan_rows(document):
            row["pays_below"], row["pays_below_bf16"] = 1e9, 0

    browser.open(changed(report, tmp_path, rates))
    assert re.match(r"It pays against dense bf16 on links slower than [\d.]+ Gbit/s, against dense f32 on links slower than [\d.]+ Gbit/s, with ", payment(browser))
    browser.open(changed(report, tmp_path, at_no_rate))
    assert payment(browser).startswith("It pays against dense bf16 on no link, against dense f32 on links slower than 1 Gbit/s, with ")
    assert browser.run("[...document.querySelectorAll('#tiles strong')].at(-1).textContent") == "never"


def test_documents_without_rows_subjects_or_new_columns_open(browser, report, tmp_path):
    def old(document):
        del document["subjects"]
        for row in document["rows"]:
            row.pop("total_error", None)

    def empty(document):
        document.update(rows=[], subjects=[], failures=[{"input": HOSTILE, "tensor": "t", "plan": "p", "error": "<b>e</b>"}])

    for change in (old, empty):
        browser.open(changed(report, tmp_path, change))
        assert browser.errors == []
    assert HOSTILE in browser.run("document.getElementById('failed').textContent")
    assert browser.run("window.hacked ?? null") is None


def test_many_rows_are_shown_in_parts_and_stay_quick(browser, report, tmp_path):
    def many(document):
        rows = plan_rows(document)
        document["rows"] = [{**rows[i % len(rows)], "plan": f"sparsify=topr(ratio=0.05) index=golomb value=uniform_quant(bits={i // 3})", "bytes": 100 + i} for i in range(3000)]
        for i, row in enumerate(document["rows"]):
            row["tensor"] = TENSORS[i % 3]

    browser.open(changed(report, tmp_path, many))
    assert marks(browser, "error-chart") == 1000 and marks(browser, "bits-chart") == 40
    assert browser.run("document.querySelectorAll('#rows tbody tr').length") == 200
    browser.run("document.getElementById('more').click()")
    assert browser.run("document.querySelectorAll('#rows tbody tr').length") == 1200
    assert browser.errors == []


def test_it_prints_on_four_pages_and_nothing_is_cut_off(browser, report, tmp_path):
    def many(document):
        rows = plan_rows(document)
        document["rows"] = [{**rows[i % len(rows)], "tensor": TENSORS[i % 3], "plan": f"sparsify=topr(ratio=0.05) feedback=residual index=golomb value=uniform_quant(bits={i // 3})", "bytes": 100 + i} for i in range(900)]

    def layers(document):  # of a model of many tensors, by the default plans
        rows = plan_rows(document)
        document["rows"] = [{**rows[(i + k) % len(rows)], "tensor": f"layer{i}.attention.weight", "plan": f"sparsify=topr(ratio=0.05) feedback=residual index=golomb value=uniform_quant(bits={k + 2})", "bytes": 100 + i + k}
                            for i in range(60) for k in range(13)]

    wide = "[...document.querySelectorAll('main *')].filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > 704.5).map((e) => e.outerHTML.slice(0, 80))"
    for change in (None, many, layers):
        browser.open(changed(report, tmp_path, change) if change else report[0])
        printed = base64.b64decode(browser.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])
        assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 4
        assert browser.run("document.documentElement.dataset.theme") == "light"
        browser.run("dispatchEvent(new Event('beforeprint'))")
        browser.call("Emulation.setEmulatedMedia", media="print")
        browser.size(703)  # A4 without its margins
        browser.settle()
        assert browser.run(wide) == []
        browser.call("Emulation.setEmulatedMedia", media="")
        browser.run("dispatchEvent(new Event('afterprint'))")
        assert browser.run("document.querySelector('#error-chart .canvas').style.height") == "380px" and browser.errors == []


def test_the_licence_of_the_library_is_in_the_file(report):
    text = report[0].read_text("utf-8")
    assert "Permission is hereby granted, free of charge" in text and "Chart.js Contributors" in text


def test_pictures_are_refused_with_the_command_that_draws_them():
    for form in ("png", "svg"):
        assert f"python -m deepreduce figure rows.json --output x.{form}" in refusal("compare", "--format", form)
