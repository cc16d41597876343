"""Look at a report as people will: ``python docs/look.py REPORT.html FOLDER`` in headless Chromium.

Draws the page at 1280 and 390 pixels, light and dark, as PNG files in the folder, and measures its boxes: what reaches
out of the page, texts of a plot that overlap, text that is cut, errors on the console, requests. Prints what it finds,
and ends with 1 if there is anything.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = {"desktop": 1280, "phone": 390}
"""Widths in pixels of the style sheet."""

SCHEMES = {"light": 1, "dark": 0}
"""Blink's numbers of the preferred colour scheme."""

MEASURE = """
<script>
addEventListener("load", () => {
  const opened = [...document.querySelectorAll("details:not([open])")];
  for (const part of opened) part.open = true;
  const found = [], wide = document.documentElement.clientWidth;
  const kind = (e) => e.tagName.toLowerCase() + "." + (e.getAttribute("class") || "");
  const name = (e) => kind(e) + " " + (e.textContent || "").trim().slice(0, 40);
  for (const e of document.querySelectorAll("body *")) {
    if (e.closest("script, style, title")) continue;
    const box = e.getBoundingClientRect();
    if (box.width && (box.right > wide + 1 || box.left < -1)) found.push("reaches out: " + name(e));
    if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth && getComputedStyle(e).overflowX !== "visible")
      found.push("cut off: " + name(e));
  }
  for (const picture of document.querySelectorAll("svg")) {
    const texts = [...picture.querySelectorAll("text")].map((e) => [e, e.getBoundingClientRect()]);
    const frame = picture.getBoundingClientRect();
    texts.forEach(([e, a], i) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1)
        found.push("out of its plot: " + name(e));
      for (const [other, b] of texts.slice(i + 1))
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
          found.push("overlap: " + name(e) + " and " + name(other));
    });
    if (picture.querySelectorAll("text").length && !picture.querySelector("circle, rect, path, polyline"))
      found.push("no data: " + picture.getAttribute("aria-label"));
  }
  for (const cell of document.querySelectorAll("th, td, button, summary, li, p")) {
    const box = cell.getBoundingClientRect();
    const range = document.createRange();
    range.selectNodeContents(cell);
    if (range.getBoundingClientRect().right > box.right + 1) found.push("text leaves its box: " + name(cell));
  }
  found.push(...performance.getEntriesByType("resource").map((entry) => "request: " + entry.name));
  found.push(...(window.errors || []));
  for (const part of opened) part.open = false;
  parent.postMessage([document.documentElement.scrollHeight, found], "*");
});
</script>
"""

ERRORS = (
    '<script>window.errors = []; addEventListener("error", (e) => window.errors.push("error: " + e.message));</script>'
)

FRAME = """<!doctype html><body style="margin:0">
<iframe srcdoc="{page}" style="border:0;width:{width}px;height:{height}px"></iframe>
<pre id="found"></pre><script>
addEventListener("message", (e) => {{ document.getElementById("found").textContent = JSON.stringify(e.data); }});
</script></body>"""


def chromium(*arguments: str) -> tuple[str, list[str]]:
    """Run headless Chromium; returns its output, and the lines of the page's console. SystemExit if there is none."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        sys.exit("no chromium was found; install the package chromium")
    with tempfile.TemporaryDirectory() as profile:
        command = [
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
        ]
        command += ["--virtual-time-budget=5000", "--enable-logging=stderr"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
        return done.stdout, re.findall(r"CONSOLE.*", done.stderr)


def look(page: str, picture: Path, width: int, scheme: int, most: int) -> list[str]:
    """Draw the page, or the top of it, in a frame of this width, and return what is wrong with the whole of it."""
    measured = page.replace("<head>", f"<head>{ERRORS}", 1).replace("</body>", f"{MEASURE}</body>", 1)
    with tempfile.TemporaryDirectory() as temporary:
        outer = Path(temporary) / "outer.html"

        def opened(height: int, *arguments: str) -> tuple[str, list[str]]:
            outer.write_text(FRAME.format(page=html.escape(measured), width=width, height=height), encoding="utf-8")
            window = f"--window-size={max(width, 500)},{height}"  # a window is at least 500 pixels wide
            return chromium(window, f"--blink-settings=preferredColorScheme={scheme}", *arguments, outer.as_uri())

        text, console = opened(2400, "--dump-dom")
        found = re.search(r'<pre id="found">(.+?)</pre>', text, flags=re.DOTALL)
        if found is None:
            return ["the page did not finish loading"]
        height, wrong = json.loads(html.unescape(found[1]))
        opened(min(height, most), f"--screenshot={picture}")
    return [*map(str, wrong), *console]


def look_main() -> int:
    """Look at the page in every size and scheme."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--top", type=int, default=100_000, help="pixels of the page that are drawn (default: all)")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    page, wrong = given.report.read_text(encoding="utf-8"), 0
    for size, width in SIZES.items():
        for scheme, number in SCHEMES.items():
            picture = given.folder / f"{given.report.stem}-{size}-{scheme}.png"
            for line in look(page, picture, width, number, given.top):
                print(f"{size}, {scheme}: {line}")
                wrong += 1
    print(f"{wrong} things are wrong" if wrong else "nothing is cut off, overlaps, or is requested")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(look_main())
