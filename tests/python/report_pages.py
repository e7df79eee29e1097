"""Pages of `compare --report` for tests, and what a person does with them."""

import json
import math
import random
import re

import pytest

import chromium
from tool_runs import SYNTH, compare, run, write_npy, write_npz

HOSTILE = "</script><script>hacked=1</script><img src=x onerror=hacked=2>"
TENSORS = ("conv.weight", HOSTILE, "fc.weight")
TOP = "sparsify=topr(ratio=0.05) "
PLANS = (TOP + "index=golomb value=raw", TOP + "index=golomb value=log_quant", TOP + "index=raw value=qsgd", TOP + "index=bloom(fpr=0.01) value=raw",
         "sparsify=topr(ratio=0.2) index=rice value=half")
SPARSIFIERS = ("topr(ratio=0.05)", "topr(ratio=0.2)")


@pytest.fixture(scope="module")
def browser():
    with chromium.Browser() as made:
        yield made


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """(file of the page, document): a model of three tensors, one of them with a hostile name, in a file with another."""
    if "this build has no report" in run("compare", SYNTH, "--repeat", 1, "--plan", PLANS[0], "--report", "/nowhere/x.html", status=2).stderr.decode():
        pytest.skip("this build has no report (libjs-chart.js)")
    folder, draw = tmp_path_factory.mktemp("report"), random.Random(1)
    members = {}
    for i, name in enumerate(TENSORS):
        members[name] = write_npy(folder / f"{i}.npy", [draw.gauss(0, 1 + i) ** 3 for _ in range(2000 + 500 * i)])
    archive = write_npz(folder / "<b onclick=hacked=3>&\"model'.npz", **members)
    page = folder / "page.html"
    measured = compare(archive, "--per-tensor", "--report", page, plans=PLANS)
    assert len(measured["rows"]) == 3 * (1 + len(PLANS))
    return page, embedded(page)


def embedded(page):
    """The document in a page."""
    return json.loads(re.search(r'id="measured">(.*?)</script>', page.read_text("utf-8"), re.S)[1])


def changed(report, folder, change):
    """Another page, of the document as `change` leaves it."""
    page, document = report
    document = json.loads(json.dumps(document))
    change(document)
    text = page.read_text("utf-8")
    begin = text.index('id="measured">') + len('id="measured">')
    other = folder / "changed.html"
    other.write_text(text[:begin] + json.dumps(document).replace("<", "\\u003c") + text[text.index("</script>", begin):], "utf-8")
    return other


# ---- The document's numbers, counted without the page ---------------------------------------------------

def plan_rows(document):
    return [row for row in document["rows"] if row["plan"] != "memcpy"]


def totals(document):
    """{plan: (bytes, total error)} over all tensors: errors by energy."""
    energy = {s["tensor"]: s["gradient_energy"] for s in document["subjects"]}
    sums = {}
    for row in plan_rows(document):
        size, lost = sums.get(row["plan"], (0, 0.0))
        sums[row["plan"]] = size + row["bytes"], lost + row["contraction"] * energy[row["tensor"]]
    return {plan: (size, math.sqrt(lost / sum(energy.values()))) for plan, (size, lost) in sums.items()}


def front_of(points):
    return [p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)]


def marks(browser, chart, dataset=0):
    """The marks of a dataset that are drawn within the chart."""
    return browser.run(f"""(() => {{
      const chart = Chart.getChart(document.querySelector('#{chart} canvas')), area = chart.chartArea;
      return chart.getDatasetMeta({dataset}).data.filter((m) => m.x >= area.left - 1 && m.x <= area.right + 1 && m.y >= area.top - 1 && m.y <= area.bottom + 1).length;
    }})()""")


def table_rows(browser, chart):
    return browser.run(f"document.querySelectorAll('#{chart} details tbody tr').length")


def choose(browser, select, value):
    browser.run(f"{{ const s = document.getElementById('{select}'); s.value = {json.dumps(value)}; s.dispatchEvent(new Event('change')); }}")
    browser.settle()


def payment(browser):
    return browser.run("document.getElementById('pays').textContent")
