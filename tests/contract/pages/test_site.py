# SPDX-License-Identifier: MIT
"""The built site has every code; in a real browser every table, picture and line of code is whole on a phone and on a desk."""

import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
from support.chromium import browser, chromium
from support.commands import ROOT, start, successful

from hybrid.errors import CODES

CUT = """[...document.querySelectorAll('.md-typeset :is(table, img, svg, pre code)')].filter(e => {
    if (!e.checkVisibility()) return false
    const scrolls = e => getComputedStyle(e).overflowX != 'visible' && e.scrollWidth > e.clientWidth + 1
    let hidden = e.getBoundingClientRect().right > document.documentElement.clientWidth + 1
    for (let box = e; box != document.body; box = box.parentElement) hidden ||= scrolls(box)
    return hidden
}).map(e => e.getAttribute('src') || e.innerText.slice(0, 60))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="needs mkdocs: the extra docs")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder]
    successful(start(build, cwd=ROOT, limit=300, NO_MKDOCS_2_WARNING="1"))
    return folder


@pytest.mark.exhaustive
def test_the_page_of_errors_lists_all_codes(site):
    assert re.findall(r"<li><code>([a-z-]+)</code>:", (site / "failures.html").read_text(encoding="utf-8")) == list(CODES)


@pytest.mark.exhaustive
@pytest.mark.needs("chromium")
def test_every_table_picture_and_line_is_whole(site):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, browser(chromium(), Path(folder)) as shown:
        cut = []
        for page in sorted(site.rglob("*.html")):
            for width in (390, 1280):
                shown.open(page, width)
                cut += [(os.fspath(page.relative_to(site)), width, each) for each in shown.value(CUT)]
        assert cut == []
