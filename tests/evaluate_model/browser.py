"""A page in headless Chromium, by its command line alone: no driver, nothing installed."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

AXE = "axe-core@4.14.1"
AXE_SHA512 = (
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--virtual-time-budget=20000",
]

# What is wrong with the layout, as texts: sideways scrolling, and things on top of each other.
LAYOUT = """
(() => {
  const problems = [];
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width)
    problems.push(`the page is ${document.documentElement.scrollWidth} wide in ${width}`);
  const boxes = (nodes) => [...nodes].map(n => [n.textContent.trim(), n.getBoundingClientRect()])
    .filter(([text, box]) => text && box.width && box.height);
  const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const check = (found, where) => found.forEach(([text, box], i) => found.slice(i + 1).forEach(
    ([other, second]) => overlap(box, second) &&
      problems.push(`${where}: "${text}" lies on "${other}"`)));
  document.querySelectorAll("svg.plot").forEach(
    svg => check(boxes(svg.querySelectorAll("text")), svg.querySelector("title").textContent));
  check(boxes(document.querySelectorAll("main > section, header, nav, footer")), "page");
  document.querySelectorAll("section").forEach(
    section => check(boxes(section.querySelectorAll("h2, figure, table, dl, p, summary")),
      section.id));
  document.querySelectorAll("svg.plot text").forEach(text => {
    const size = text.getBoundingClientRect().height;
    if (size && size < 9) problems.push(`"${text.textContent}" is ${size.toFixed(1)} px high`);
  });
  return problems;
})()
"""

EXAMINE = """
window.addEventListener("load", async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  const nodes = (v) => v.nodes.slice(0, 4).map(n => n.html.slice(0, 160) + n.failureSummary);
  parent.postMessage({
    violations: found.violations.map(v => ({id: v.id, impact: v.impact, nodes: nodes(v)})),
    layout: LAYOUT,
    width: document.documentElement.clientWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
  }, "*");
});
"""
FRAME = """<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<body style="margin: 0"><script>
addEventListener("message", (event) => {
  const out = document.createElement("textarea");
  out.id = "found";
  out.textContent = JSON.stringify(event.data);
  document.body.append(out);
});
</script><iframe src="examined.html" style="border: 0; width: WIDTHpx; height: 1200px"></iframe>
"""


def chromium():
    """Path of Chromium, or skip."""
    found = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if found is None:
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    return found


def axe_source(cache):
    """The text of axe.min.js, fetched once and verified, or skip."""
    path = Path(cache, "axe.min.js")
    if not path.exists():
        if shutil.which("npm") is None:
            pytest.skip("no npm on this machine to fetch axe-core with")
        with tempfile.TemporaryDirectory() as folder:
            ended = subprocess.run(
                ["npm", "pack", "--silent", AXE], cwd=folder, capture_output=True, text=True
            )
            if ended.returncode:
                pytest.skip(f"axe-core cannot be fetched: {ended.stderr.strip()[-200:]}")
            archive = next(Path(folder).glob("*.tgz"))
            digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
            assert digest == AXE_SHA512
            with tarfile.open(archive) as files:
                path.write_bytes(files.extractfile("package/axe.min.js").read())
    return path.read_text(encoding="utf-8")


def examined(page, *, width, dark, axe, folder):
    """Open a page and return (axe violations, layout problems, console messages).

    Args:
        page: its HTML; examined in a copy that also holds axe.
        width: of the window in pixels.
        dark: the preferred colour scheme.
        axe: source of axe.min.js.
        folder: for the copy.
    """
    copy = Path(folder, "examined.html")
    script = f"<script>{axe}</script><script>{EXAMINE.replace('LAYOUT', LAYOUT)}</script>"
    copy.write_text(page.replace("</body>", script + "</body>"), encoding="utf-8")
    # Chromium makes no window narrower than 500 pixels, but a frame can be.
    frame = Path(folder, "frame.html")
    frame.write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    text, messages = _run(frame, max(width, 500), dark)
    found = re.search(r'<textarea id="found">(.*?)</textarea>', text, re.DOTALL)
    assert found, f"the page did not finish: {messages}"
    result = json.loads(html.unescape(found.group(1)))
    assert (result["dark"], result["width"]) == (dark, width)
    return result["violations"], result["layout"], messages


def console_messages(page, folder):
    """What the console says about the page as it is, network failures included."""
    path = Path(folder, "page.html")
    path.write_text(page, encoding="utf-8")
    return _run(path, 1280, False)[1]


def _run(path, width, dark):
    with tempfile.TemporaryDirectory() as profile:
        scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
        ended = subprocess.run(
            [chromium(), *FLAGS, *scheme, f"--user-data-dir={profile}"]
            + [f"--window-size={width},1200", "--dump-dom", path.as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
        )
    messages = [line for line in ended.stderr.splitlines() if "CONSOLE" in line]
    return ended.stdout, messages
