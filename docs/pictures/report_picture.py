"""Makes report.png, the picture of a report in README: the gradients that are bundled, in headless Chromium.

    python3 docs/pictures/report_picture.py [TOOL]        TOOL: build/tool/deepreduce
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python"))
import chromium  # noqa: E402

PLANS = "sparsify=topr(ratio=0.01|0.03|0.1|0.3) index=raw|golomb|gap_huffman|bloom(policy=p0,fpr=0.01) value=raw|half|log_quant|qsgd"
SETTINGS = ["--ranks", "8", "--link", "1Gb/s,50us", "--time", "0.05"]
WIDTH, HEIGHT = 1240, 1180  # CSS pixels; the picture has twice as many


OUT = Path(__file__).with_name("report.png")


def main():
    tool = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "tool" / "deepreduce"
    with tempfile.TemporaryDirectory() as folder, chromium.Browser() as browser:
        page = Path(folder) / "report.html"
        command = [tool, "compare", "datasets/gradients", "--plan", PLANS, *SETTINGS, "--report", page]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        browser.open(page, WIDTH, HEIGHT, scale=2)
        browser.run("{ const l = document.getElementById('limit'); l.value = 0.5; l.dispatchEvent(new Event('input')); }")
        browser.settle()
        browser.picture(OUT)
    # Few colours: a third of the bytes.
    from PIL import Image

    Image.open(OUT).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(OUT, optimize=True)


if __name__ == "__main__":
    main()
