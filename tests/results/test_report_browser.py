"""The page of `skipbench report` in a real browser: it works, and a hostile name does nothing."""

import re

import browser
import numpy as np
import pytest
from made import counts_of, make_result, put_tokencut, scores_by_block, with_counts
from pages import SCRIPT, hostile_records, with_tiles

from skipbench.record_store import write_result
from skipbench.results.report import report


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if not browser.find():
        pytest.skip("no chromium here")
    started = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def rich_page(tmp_path_factory):
    """Everything that a page can have: tables with gaps, curves, classes, pictures, seeds."""
    folder = tmp_path_factory.mktemp("rich")
    rng = np.random.default_rng(0)
    results = folder / "results"
    rates = [{"rate": r, "miou": 40.0, "interval": [39.0, 41.0]} for r in (1e-3, 1e-2)]
    for residual in ("skip", "skipless"):
        for epoch in (100, 300):
            result = with_counts(
                results, counts_of(rng), residual=residual, epoch=epoch,
                name=f"{residual}{epoch}.pth", call={"ckpt": "/a b/c.pth", "dataset": "voc"},
                protocol={"rates": [1e-3]},
            )  # fmt: skip
        with_tiles(results, result)
        for seed in (0, 1):
            extra = make_result(
                residual=residual, dataset="ade20k", optimizer=None, seed=seed,
                interval=[49.0, 51.5], protocol={"rates": [1e-3]}, name=residual,
                metrics={"rates": rates, "rate": 1e-2},
            )  # fmt: skip
            write_result(results, extra, {})
        found = put_tokencut(
            results, scores_by_block(rng), residual=residual, name=f"{residual}300.pth",
            dataset="coco20k",
        )  # fmt: skip
        with_tiles(results, found, own="box", images=("three",))
    put_tokencut(results, scores_by_block(rng)[:, :1], layers="11", blocks=[11], depth=12)
    (results / "broken.json").write_text("{")
    return report(results, folder / "rich.html")


def quiet(tab):
    """Nothing went wrong, and nothing was asked for but the page itself."""
    asked = [url for url in tab.requests if not url.startswith("data:")]
    return tab.complaints == [] and len(asked) == 1 and asked[0].startswith("file:")


def test_nothing_to_complain_about_and_nothing_from_the_network(chromium, rich_page):
    with chromium.open(rich_page) as tab:
        broken = "[...document.images].filter(i => i.src && !i.naturalWidth).length"
        assert tab.run(broken) == 0 and tab.run("document.images.length") > 6
        tab.run(
            "document.querySelectorAll('button').forEach(b => b.checkVisibility() && b.click())"
        )
        assert quiet(tab), (tab.complaints, tab.requests)


def test_tables_sort(chromium, rich_page):
    column = """(() => {
      const table = [...document.querySelectorAll('figure.table table')].at(-1);
      const header = [...table.tHead.rows].at(-1).cells[%d];
      header.querySelector('button').click();
      const cells = [...table.tBodies[0].rows].map(r => r.cells[%d]);
      return [header.getAttribute('aria-sort'), cells.map(c => c.dataset.value ?? c.innerText)];
    })()"""
    with chromium.open(rich_page) as tab:
        names = tab.run(
            "[...[...[...document.querySelectorAll('figure.table table')].at(-1).tHead.rows]"
            ".at(-1).cells].map(c => c.innerText.trim())"
        )
        miou, optimizer = names.index("mIoU"), names.index("optimizer")
        first, down = tab.run(column % (miou, miou))
        second, up = tab.run(column % (miou, miou))
        assert (first, second) == ("descending", "ascending")
        there = len(up) - up.count("–")  # rows of another measure have none, and stand last
        assert 0 < there < len(up) and set(up[there:]) == set(down[there:]) == {"–"}
        up, down = up[:there], down[:there]
        assert up == down[::-1] and sorted(up, key=float) == up
        _, words = tab.run(column % (optimizer, optimizer))
        assert words[-1] == "unknown" and words[0] == "AdamW"
        assert (
            tab.run("document.querySelectorAll('figure.table:last-of-type [aria-sort]').length")
            == 1
        )


def test_copy_gives_the_latex(chromium, rich_page):
    press = "document.querySelector('button.copy').click()"
    wanted = "document.querySelector('textarea').value"
    with chromium.open(rich_page) as tab:
        tab.run(
            "Object.defineProperty(navigator, 'clipboard', {configurable: true, value: "
            "{writeText: async t => { window.copied = t }}})"
        )
        tab.run(press)
        assert tab.run("window.copied") == tab.run(wanted)
        assert tab.run(wanted).startswith(r"\begin{table}") and tab.run(wanted).endswith(
            "\\end{table}\n"
        )


def test_copy_without_a_clipboard(chromium, rich_page):
    with chromium.open(rich_page) as tab:
        tab.run("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        tab.run("addEventListener('copy', () => { window.copied = String(getSelection()) })")
        tab.run("document.querySelectorAll('button.copy')[1].click()")
        assert tab.run("window.copied") == tab.run("document.querySelectorAll('textarea')[1].value")
        assert tab.run("document.querySelectorAll('textarea')[1].hidden") is True


def test_provenance_opens_by_click_and_by_keyboard(chromium, rich_page):
    with chromium.open(rich_page) as tab:
        shown = "document.getElementById('provenance').open"
        inside = "document.querySelector('#provenance .inside').innerText"
        tab.run("document.querySelector('td a.score').click()")
        assert tab.run(shown) and "skipbench probe --ckpt '/a b/c.pth'" in tab.run(inside)
        tab.press("Escape", 27)
        assert not tab.run(shown)
        tab.run("document.querySelector('td a.score').focus()")
        tab.press("Enter", 13, "\r")
        assert tab.run(shown)
        tab.run("document.querySelector('#provenance .close').click()")
        assert not tab.run(shown) and quiet(tab)


def test_pictures_enlarge_and_step(chromium, rich_page):
    with chromium.open(rich_page) as tab:
        tab.run("document.querySelector('.enlarge img[alt=\"one: ground truth\"]').click()")
        assert tab.run("document.getElementById('picture').open")
        caption = "document.querySelector('#picture figcaption').textContent"
        assert tab.run(caption) == "one: ground truth"
        tab.press("ArrowRight", 39)
        assert "prediction" in tab.run(caption)
        assert tab.run("document.querySelector('#picture img').naturalWidth") > 0


def test_the_curve_over_blocks_has_its_points_where_they_can_be_met(chromium, rich_page):
    rings = """(() => {
      const charts = [...document.querySelectorAll('.chart')].filter(
        (chart) => chart.getAttribute('aria-label').startsWith('CorLoc over blocks'));
      const far = (ring) => {
        const [a, b] = [ring, ring.closest('.point').querySelector('path')].map(
          (e) => e.getBoundingClientRect());
        return Math.hypot(a.x + a.width / 2 - b.x - b.width / 2,
                          a.y + a.height / 2 - b.y - b.height / 2);
      };
      return charts.map((chart) => [
        chart.querySelectorAll('.point').length,
        [...chart.querySelectorAll('.ring')].map(far),
        [...chart.querySelectorAll('.point title')].map((title) => title.textContent),
      ]);
    })()"""
    with chromium.open(rich_page) as tab:
        ((points, far, titles),) = tab.run(rings)
        assert points == 24 and len(far) == 2 and max(far) < 1
        assert titles[0].startswith("skip, block 0: ") and titles[-1].startswith(
            "skipless, block 11"
        )


def test_a_hostile_name_does_nothing(chromium, tmp_path):
    hostile_records(tmp_path / "results")
    path = report(tmp_path / "results", tmp_path / "hostile.html", title=SCRIPT)
    with chromium.open(path, width=375) as tab:
        tab.run("document.querySelectorAll('details').forEach(d => { d.open = true })")
        tab.run(
            "document.querySelectorAll('.score, .sort, .copy, .enlarge').forEach(e => e.click())"
        )
        tab.run(
            "document.querySelectorAll('*').forEach(e => e.dispatchEvent(new Event('mouseover')))"
        )
        assert tab.run("window.pwned") is None and quiet(tab), tab.complaints
        assert tab.run("document.title") == SCRIPT
        assert SCRIPT in tab.run("document.body.innerText")
        assert tab.run("document.scrollingElement.scrollWidth") <= 375


@pytest.mark.parametrize("width", [320, 375, 800, 1280])
def test_no_page_is_wider_than_its_window(chromium, rich_page, width):
    with chromium.open(rich_page, width=width) as tab:
        tab.run("document.querySelectorAll('details').forEach(d => { d.open = true })")
        assert tab.run("document.scrollingElement.scrollWidth") <= width
        tab.run("document.querySelector('a.score').click()")
        dialog = "document.getElementById('provenance')"
        assert tab.run(f"{dialog}.scrollWidth <= {dialog}.clientWidth")


# What is written where, with its colour and the nearest background behind it.
CONTRASTS = """(() => {
  const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !e.checkVisibility()) continue;
    const style = getComputedStyle(e);
    const ink = parse(e.closest('svg') ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(e))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), e.outerHTML.slice(0, 80)]);
  }
  return found;
})()"""


@pytest.mark.parametrize("chosen", [False, True], ids=["by the system", "by the button"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(chromium, rich_page, scheme, chosen):
    other = {"light": "dark", "dark": "light"}[scheme]
    with chromium.open(rich_page, scheme=other if chosen else scheme) as tab:
        if chosen:
            tab.run("document.getElementById('theme').click()")
        paper = tab.run("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", paper))) > 380) == (scheme == "light")
        found = tab.run(CONTRASTS)
        assert len(found) > 100
        assert [one for one in found if one[0] < 4.5] == []


def test_print_shows_what_is_folded_and_no_buttons(chromium, rich_page):
    with chromium.open(rich_page) as tab:
        assert tab.pdf().startswith(b"%PDF")
        assert tab.run("document.querySelectorAll('details.record[open]').length") == 0  # as before
        tab.emulate(media="print", scheme="dark")
        assert not tab.run("document.querySelector('button.copy').checkVisibility()")
        assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        visible = "document.querySelector('details.record pre').getBoundingClientRect().height"
        assert tab.run(visible) > 0
