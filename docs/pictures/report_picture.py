"""Makes report.png, the picture of a report in README: the accumulators that are bundled, in headless Chromium.

    python3 docs/pictures/report_picture.py [TOOL]        TOOL: build/bench/compare/deepreduce
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python"))
import chromium  # noqa: E402

INPUT = ROOT / "datasets" / "accumulators" / "resnet20_digits_residual_top1_step0225.npz"
PLANS = [
    f"sparsify=topr(ratio=0.01) index={index} value={value}"
    for index in ("golomb", "gap_huffman", "elias_fano", "bloom(policy=p0,fpr=0.001)", "raw")
    for value in ("raw", "half", "log_quant", "qsgd", "fit_poly")
]
WIDTH, HEIGHT = 1280, 1120  # CSS pixels; the picture has twice as many


def main():
    tool = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "bench" / "compare" / "deepreduce"
    with tempfile.TemporaryDirectory() as folder, chromium.Browser() as browser:
        page = Path(folder) / "report.html"
        plans = [word for plan in PLANS for word in ("--plan", plan)]
        subprocess.run([tool, "compare", INPUT.relative_to(ROOT), *plans, "--report", page], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        browser.open(page, WIDTH, HEIGHT, scale=2)
        browser.run("document.getElementById('error-chart').querySelector('canvas').focus({preventScroll: true})")
        browser.picture(Path(__file__).with_name("report.png"))


if __name__ == "__main__":
    main()
