"""Pages in Chromium, for tests that look at them."""

import shutil
import subprocess

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
DARK = "--blink-settings=preferredColorScheme=0"


def browse(page, folder, *flags):
    """The page's document after loading, and what the browser said."""
    path = folder / "page.html"
    path.write_text(page)
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [
        "--hide-scrollbars",
        "--enable-logging=stderr",
        f"--user-data-dir={folder / 'profile'}",
        *flags,
    ]
    command += ["--dump-dom", path.as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return result.stdout, result.stderr


def framed(page, width):
    """The page in a frame of that width, which a window may not have, and what it found."""
    text = page.replace("&", "&amp;").replace('"', "&quot;")
    return (
        f"<!doctype html><iframe width={width} height=800 style='border:0' srcdoc=\"{text}\">"
        "</iframe><script>onload = () => { const out = document.createElement('pre');"
        "out.id = 'found';"
        "out.textContent = frames[0].document.getElementById('found').textContent;"
        "document.body.append(out); }</script>"
    )
