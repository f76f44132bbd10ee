"""Draws docs/report.png: the page that the README's quick start writes, in Chromium.

python docs/report_picture.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parent
SIZE, WIDTH = (1280, 1330), 1024  # of the window, and of the picture


def main() -> None:
    """Run the quick start in a temporary folder and take the picture."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        sys.exit("Chromium is not installed.")
    readme = (DOCS.parent / "README.md").read_text("utf-8")
    (script,) = re.findall(r"^```sh\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["bash", "-euc", script], cwd=folder, env=os.environ | {"PATH": path}, check=True
        )
        picture = Path(folder) / "report.png"
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--screenshot={picture}", f"--window-size={SIZE[0]},{SIZE[1]}"]
        page = (Path(folder) / "run" / "report.html").as_uri()
        subprocess.run([*command, page], check=True, capture_output=True)
        with Image.open(picture) as image:
            small = image.convert("RGB").resize((WIDTH, WIDTH * SIZE[1] // SIZE[0]))
            small.quantize(192).save(DOCS / "report.png", optimize=True)


if __name__ == "__main__":
    main()
