"""Open a page in Debian's headless chromium, and measure what is on it."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")
WIDTHS = (1280, 390)
HERE = Path(__file__).parent
# Without a sandbox: CI runs as root in a container. The profile is in the test's own folder.
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
OPTIONS += ("--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage")


@pytest.fixture
def measure(tmp_path):
    """Return a function that measures a page in both widths, each in the light and the dark theme."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: scripts/install_system_packages.sh")
    return lambda page: measured_by_chromium(page, tmp_path)


def measured_by_chromium(page: str, folder: Path) -> dict[int, dict]:
    """Return what ``measure.js`` reports of a page, by width in pixels.

    The window of a headless chromium is at least 500 pixels wide, so the page is in a frame of each width.
    """
    observed = page.replace(
        "<head>", f"<head><script>{(HERE / 'measure.js').read_text()}</script>", 1
    )
    (folder / "page.html").write_text(observed, encoding="utf-8")
    frames = "".join(
        f'<iframe name="{width}" src="page.html" width="{width}" height="4000" style="border:0"></iframe>'
        for width in WIDTHS
    )
    (folder / "frames.html").write_text(FRAMES.replace("FRAMES", frames))
    ended = subprocess.run(
        [
            *(
                CHROMIUM,
                *OPTIONS,
                f"--user-data-dir={folder / 'profile'}",
                "--window-size=1400,4000",
            ),
            *("--virtual-time-budget=20000", "--dump-dom", (folder / "frames.html").as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    reports = re.findall(r'<pre class="measured" id="(\d+)">(.*?)</pre>', ended.stdout, re.S)
    assert len(reports) == len(WIDTHS), ended.stderr[-2000:]
    return {int(width): json.loads(html.unescape(text)) for width, text in reports}


FRAMES = """<!doctype html><body style="margin:0"><script>
addEventListener("message", (event) => {
  const pre = document.createElement("pre");
  pre.className = "measured";
  pre.id = event.data.width;
  pre.textContent = JSON.stringify(event.data);
  document.body.append(pre);
});
</script>FRAMES</body>"""


@pytest.fixture
def browser(tmp_path):
    """Return a context manager that opens an address in chromium, and ends it."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: scripts/install_system_packages.sh")

    @contextlib.contextmanager
    def opened(address: str, *options: str) -> Iterator[None]:
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        command = [CHROMIUM, *OPTIONS, *options, profile, "--window-size=1400,1000", address]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its helpers too
            process.wait()

    return opened
