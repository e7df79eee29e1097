"""Makes report.png, the picture in README: the top of the page that README's first command writes, in headless Chromium.

    python3 docs/pictures/report_picture.py [TOOL]        TOOL: build/tool/deepreduce
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python"))
import chromium  # noqa: E402

WIDTH, HEIGHT = 1240, 1180  # CSS pixels; the picture has twice as many


OUT = Path(__file__).with_name("report.png")


def main():
    tool = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "tool" / "deepreduce"
    with tempfile.TemporaryDirectory() as folder, chromium.Browser() as browser:
        page = Path(folder) / "report.html"
        command = [tool, "compare", "--report", page]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        browser.open(page, WIDTH, HEIGHT, scale=2)
        browser.picture(OUT)
    # Few colours, also those of few pixels: a third of the bytes.
    from PIL import Image

    Image.open(OUT).convert("RGB").quantize(128, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(OUT, optimize=True)


if __name__ == "__main__":
    main()
