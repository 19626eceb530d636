"""The documentation site, built as make docs does and looked at: every link resolves, and every page fits a phone."""

import json
import queue
import re
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILT = ROOT / ".site" / "html"
BUILD_S, PAGE_S = 300, 60
PHONE, DESKTOP = 390, 1280
# What a page fetches from elsewhere is refused, and reported by look.js.
OWN_FILES = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
DRIVER = """<!doctype html><body style="margin:0"><iframe style="border:0" height="900"></iframe><script>
const frame = document.querySelector("iframe");
const send = (report) => fetch("/report", { method: "POST", body: JSON.stringify(report) });
addEventListener("message", async (event) => {
  await send({ page: frame.dataset.page, ...event.data });
  visit();
});
const visits = VISITS;
function visit() {
  const next = visits.shift();
  if (!next) return;
  [frame.dataset.page, frame.width] = next;
  frame.src = `/${next[0]}`;
}
visit();
</script></body>"""


# Types words into the search, one after the other, and reports where the results of each lead.
SEARCHER = """<!doctype html><body><iframe src="/index.html" width="1280" height="900"></iframe><script>
const frame = document.querySelector("iframe");
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
frame.addEventListener("load", async () => {
  frame.contentDocument.querySelector(".md-search__button").click();
  const inside = () => [...frame.contentDocument.querySelectorAll("*")].map((each) => each.shadowRoot).filter(Boolean);
  const all = (selector) => inside().flatMap((root) => [...root.querySelectorAll(selector)]);
  while (!all("input").length) await pause(100);
  const [input] = all("input");
  for (const word of WORDS) {
    input.value = word;
    input.dispatchEvent(new Event("input", { bubbles: true }));
    while (!all("a[href]").length) await pause(100);
    await pause(500);
    const results = all("a[href]").map((link) => new URL(link.href).pathname);
    await fetch("/report", { method: "POST", body: JSON.stringify(results) });
  }
});
</script></body>"""


class Outline(HTMLParser):
    """What a page refers to, the anchors that it has, and its text outside of code."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.prose: list[str] = []
        self._in_code = 0

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.anchors |= {named["id"]} if named.get("id") else set()
        self.targets += [named[key] for key in ("href", "src") if named.get(key)]
        self._in_code += tag in ("code", "pre", "script", "style")

    def handle_endtag(self, tag):
        self._in_code -= tag in ("code", "pre", "script", "style")

    def handle_data(self, data):
        if not self._in_code:
            self.prose += data.splitlines()


@pytest.fixture(scope="module")
def outlines():
    """Build the site, and return the outline of each page by its path."""
    built = subprocess.run(
        [sys.executable, ROOT / "scripts" / "build_site.py"],
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {}
    for path in sorted(BUILT.rglob("*.html")):
        outline = Outline()
        outline.feed(path.read_text(encoding="utf-8"))
        pages[path.relative_to(BUILT).as_posix()] = outline
    return pages


def test_all_pages_are_there(outlines):
    expected = {"index.html", "reference/findings/data-bound.html", "reference/api/session.html"}
    assert expected | {"project/style.html", "design/index.html"} <= set(outlines)
    assert "raw/ranks.svg" in outlines["index.html"].targets
    callbacks = BUILT / "reference" / "api" / "callbacks.html"
    assert callbacks.stat().st_size < 400_000, "the hooks of Callback are on it many times"


def test_every_link_and_anchor_resolves(outlines):
    broken = []
    for page, outline in outlines.items():
        for target in outline.targets:
            parts = urlsplit(target)
            if parts.scheme:
                continue
            path = BUILT / page
            if parts.path:
                path = (path.parent / unquote(parts.path)).resolve()
            name = path.relative_to(BUILT).as_posix() if path.is_relative_to(BUILT) else ""
            anchors = outlines[name].anchors if name in outlines else {""}
            fragment = unquote(parts.fragment)
            if not path.is_file() or (fragment and name in outlines and fragment not in anchors):
                broken.append(f"{page}: {target}")
    assert broken == []


def test_no_markdown_is_left_in_the_text(outlines):
    left = [
        f"{page}: {line}"
        for page, outline in outlines.items()
        for line in outline.prose
        if line.startswith(("- ", "::: ", "| --", "```")) or "](" in line
    ]
    assert left == []


class Site(SimpleHTTPRequestHandler):
    """Serves the site with look.js in each page, and takes what that reports."""

    def __init__(self, *args, driver: str, reports: queue.Queue, **options) -> None:
        self.driver, self.reports = driver, reports
        super().__init__(*args, directory=str(BUILT), **options)

    def do_GET(self):
        place = BUILT / urlsplit(self.path).path.lstrip("/")
        if self.path == "/driver":
            self._answer(self.driver)
        elif place.suffix == ".html" and place.is_file():
            observer = f"<head><script>{(HERE / 'look.js').read_text()}</script>"
            self._answer(place.read_text(encoding="utf-8").replace("<head>", observer, 1))
        else:
            super().do_GET()

    def do_POST(self):
        self.reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer("")

    def _answer(self, text):
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Security-Policy", OWN_FILES)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def reports_of(browser):
    """Return a function that opens a driver beside the site, and yields what it reports."""

    def reported(driver, number, *options):
        reports = queue.Queue()
        handler = partial(Site, driver=driver, reports=reports)
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            serving = threading.Thread(target=server.serve_forever)
            serving.start()
            try:
                with browser(f"http://127.0.0.1:{server.server_port}/driver", *options):
                    yield from (reports.get(timeout=PAGE_S) for _ in range(number))
            finally:
                server.shutdown()
                serving.join()

    return reported


@pytest.fixture
def visit(reports_of):
    """Return a function that opens pages in widths, and yields what look.js reports of each."""

    def visited(visits, *options):
        driver = DRIVER.replace("VISITS", json.dumps(visits))
        return reports_of(driver, len(visits), *options)

    return visited


def complaints(reports):
    return [
        f"{report['page']}: {complaint}" for report in reports for complaint in report["complaints"]
    ]


def is_finding(page):
    return page.startswith("reference/findings/")


def test_pages_fit_a_phone_and_complain_of_nothing(outlines, visit):
    """All but those of findings, which have one form: of them every tenth."""
    findings = [page for page in outlines if is_finding(page)]
    pages = [page for page in outlines if not is_finding(page)]
    assert complaints(visit([(page, PHONE) for page in (*pages, *findings[::10])])) == []


@pytest.mark.slow
def test_pages_of_all_findings_fit_a_phone(outlines, visit):
    pages = [page for page in outlines if is_finding(page)]
    assert complaints(visit([(page, PHONE) for page in pages])) == []


PAGES = ("index.html", "guides/run.html", "reference/findings/data-bound.html")
PAGES += ("reference/api/session.html", "reference/options.html")


@pytest.mark.parametrize(
    ("options", "background"),
    [((), "rgb(255, 255, 255)"), (("--force-dark-mode",), "rgb(11, 12, 15)")],
    ids=["light", "dark"],
)
def test_pages_follow_the_theme_of_the_system(outlines, visit, options, background):
    for report in visit([(page, DESKTOP) for page in PAGES], *options):
        assert report["inner"] == DESKTOP
        assert (report["complaints"], report["background"]) == ([], background), report


FIRST_HITS = {
    "port-in-use": "reference/findings/port-in-use",
    "out of memory": "guides/precision",
    "hang": "guides/hangs",
    "slurm": "guides/slurm",
    "checkpoint": "guides/checkpoints",
    "learning rate": "guides/batch-size",
    "timeout": "guides/hangs",
    "port": "guides/several-nodes",
    "accumulate": "reference/api/session",
    "mixed precision": "guides/precision",
    "data loader": "guides/tune",
}


def test_the_first_hit_of_a_word_is_the_page_about_it(outlines, reports_of):
    driver = SEARCHER.replace("WORDS", json.dumps([*FIRST_HITS]))
    found = list(reports_of(driver, len(FIRST_HITS)))
    assert [results[0] for results in found] == [f"/{page}.html" for page in FIRST_HITS.values()]
    assert not re.search(r'"/(log|design|project)', json.dumps(found))


def test_what_is_looked_for_is_found(outlines, visit):
    page = BUILT / "wrong.html"
    wrong = (
        '<p style="width:2000px">wide</p><img src="http://192.0.2.1/pixel.png">'
        "<script>console.error('broken')</script>"
    )
    whole = (BUILT / "start.html").read_text(encoding="utf-8")
    page.write_text(whole.replace("</article>", f"{wrong}</article>"), encoding="utf-8")
    try:
        (report,) = visit([("wrong.html", PHONE)])
    finally:
        page.unlink()
    found = "\n".join(report["complaints"])
    for expected in ("too wide: P wide", "fetched: http://192.0.2.1", "console: broken", "page of"):
        assert expected in found
