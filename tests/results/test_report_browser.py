"""The page of `skipbench report` in a real browser: it works, and a hostile name does nothing."""

import re

import browser
import numpy as np
import pytest
from made import counts_of, make_result, put_tokencut, scores_by_block, with_counts
from pages import SCRIPT, hostile_records, tile, with_tiles

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
        link = "document.querySelector('#comparisons td a.score')"
        tab.run(f"{link}.click()")
        assert tab.run(shown) and "skipbench probe --ckpt '/a b/c.pth'" in tab.run(inside)
        tab.press("Escape", 27)
        assert not tab.run(shown)
        tab.run(f"{link}.focus()")
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


@pytest.fixture(scope="module")
def gallery_page(tmp_path_factory):
    """Two models and three images, each harder than the one before for the second model."""
    folder = tmp_path_factory.mktemp("gallery")
    images = [f"val_{i:03d}" for i in range(3)]
    for name, right in (("a.pth", (9, 9, 9)), ("b.pth", (8, 5, 2))):
        counts = np.zeros((3, 3, 3), np.int32)
        for image, number in enumerate(right):  # one class each
            counts[image, :, image] = number, number, 10
        result = with_counts(folder / "results", counts, name=name)
        tiles = with_tiles(folder / "results", result, images=images)
        for image in images:
            tile(tiles, f"{image}_t.png", (0, 255, 0))
            tile(tiles, f"{image}_prediction.png", (0, 0, 255))
    return report(folder / "results", folder / "gallery.html")


CHOOSE = """(() => {
  const select = document.querySelector('.gallery select.%s');
  select.value = [...select.options].find((option) => option.text.startsWith('%s')).value;
  select.dispatchEvent(new Event('change', {bubbles: true}));
})()"""
SHOWN_ROWS = (
    "[...document.querySelectorAll('.row-of-pictures')].filter(row => row.checkVisibility())"
    ".map(row => row.querySelector('h4').innerText.trim())"
)


def test_pictures_are_filtered_by_class_and_sorted_by_score_and_difference(chromium, gallery_page):
    with chromium.open(gallery_page) as tab:
        assert tab.run(SHOWN_ROWS) == ["val_000", "val_001", "val_002"]
        tab.run(CHOOSE % ("order", "lowest"))
        tab.run(CHOOSE % ("first", "b.pth"))
        assert tab.run(SHOWN_ROWS) == ["val_002 20.0", "val_001 50.0", "val_000 80.0"]
        tab.run(CHOOSE % ("order", "highest"))
        assert tab.run(SHOWN_ROWS)[0] == "val_000 80.0"
        tab.run(CHOOSE % ("order", "difference"))
        tab.run(CHOOSE % ("first", "a.pth"))
        tab.run(CHOOSE % ("second", "b.pth"))
        assert tab.run(SHOWN_ROWS) == ["val_002 +70.0", "val_001 +40.0", "val_000 +10.0"]
        tab.run(CHOOSE % ("by-class", "cat"))
        assert tab.run(SHOWN_ROWS) == ["val_001 +40.0"]
        assert tab.run("document.querySelector('.gallery output').textContent") == "1 of 3 images"
        tab.run(CHOOSE % ("by-class", "all"))
        tab.run(CHOOSE % ("order", "data set order"))
        assert tab.run(SHOWN_ROWS) == ["val_000", "val_001", "val_002"] and quiet(tab)


def test_overlays_are_toggled_by_a_key(chromium, gallery_page):
    of_model = """(() => {
      const row = document.querySelector('.row-of-pictures');
      const image = row.querySelector('img[data-truth]');
      const [picture, truth] = [...row.querySelectorAll('.shared img')].map((one) => one.src);
      const is = {[picture]: 'image', [truth]: 'truth'}[image.src] ?? 'prediction';
      return [is, row.querySelectorAll('img.against').length, image.alt];
    })()"""
    with chromium.open(gallery_page) as tab:
        own = tab.run(of_model)[2]
        tab.press("g", 71)
        assert tab.run(of_model)[:2] == ["prediction", 0]  # the pointer is elsewhere
        tab.run("document.querySelector('.gallery .enlarge').focus()")
        for key, code, expected in (
            ("g", 71, ["truth", 0, f"{own} (ground truth)"]),
            ("d", 68, ["prediction", 2, f"{own} (difference from ground truth)"]),
            ("i", 73, ["image", 0, f"{own} (image)"]),
            ("p", 80, ["prediction", 0, own]),
        ):
            tab.press(key, code)
            assert tab.run(of_model) == expected
        tab.run("document.querySelector('.gallery img[data-truth]').click()")
        tab.press("d", 68)
        assert tab.run("document.querySelectorAll('#picture img').length") == 2
        blend = "getComputedStyle(document.querySelector('#picture img.against')).mixBlendMode"
        assert tab.run(blend) == "difference" and quiet(tab)


def test_on_a_phone_tables_are_cards(chromium, rich_page):
    cells = "[...document.querySelectorAll('.comparison td.number:not(.twice)')]"
    beside = f"new Set({cells}.map(cell => Math.round(cell.getBoundingClientRect().left))).size"
    with chromium.open(rich_page, width=400) as tab:
        assert not tab.run("document.querySelector('.cards thead').checkVisibility()")
        assert tab.run(beside) == 1
        label = f"getComputedStyle({cells}[0], '::before').content"
        assert tab.run(label) == '"mIoU"'
    with chromium.open(rich_page, width=1400) as tab:
        assert tab.run("document.querySelector('.cards thead').checkVisibility()")
        assert tab.run(beside) > 1


@pytest.fixture(scope="module")
def page_of_seven(tmp_path_factory):
    """Seven models with names as people give them, and their pictures."""
    folder, rng = tmp_path_factory.mktemp("seven"), np.random.default_rng(0)
    long = "vit_tiny_patch16_dino_imagenet1k_300epochs_batch1024_lr0.0005_seed3_ema_teacher_final"
    names = ["skip.safetensors", "runA/checkpoint0300.safetensors", f"{long}.safetensors"]
    for i in range(7):
        result = with_counts(
            folder / "results", counts_of(rng, quality=0.4 + i / 20), name=f"{i}{names[i % 3]}",
            residual=("skip", "skipless")[i % 2], depth=6 + i % 3, epoch=100 * (i % 2) or None,
        )  # fmt: skip
        with_tiles(folder / "results", result, images=[f"val_{j:03d}" for j in range(3)])
    return report(folder / "results", folder / "seven.html")


@pytest.mark.parametrize("width", [400, 800, 1400])
def test_seven_models_fit(chromium, page_of_seven, width):
    """No name runs into the next or is cut within a word; no cell is cut on a wide screen."""
    broken = """(() => {
      const found = [], range = document.createRange();
      for (const model of document.querySelectorAll('.model, th')) {
        if (!model.checkVisibility()) continue;
        if (model.scrollWidth > model.clientWidth && model.clientWidth) found.push(model.innerText);
        const walker = document.createTreeWalker(model, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) { // <wbr> parts text where it may break
          range.selectNodeContents(walker.currentNode);
          const word = walker.currentNode.data.trim();
          if (!/\\s/.test(word) && range.getClientRects().length > 1) found.push(word);
        }
      }
      return found;
    })()"""
    cut = """[...document.querySelectorAll('.scroll')]
      .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.ariaLabel)"""
    with chromium.open(page_of_seven, width=width) as tab:
        tab.run(CHOOSE % ("order", "difference"))  # the widest that the controls can be
        tab.run("document.querySelectorAll('details.many').forEach(d => { d.open = true })")
        assert tab.run("document.scrollingElement.scrollWidth") <= width
        assert tab.run(broken) == []
        assert width == 800 or tab.run(cut) == []


def test_seven_models_fit_on_a_sheet_of_paper(chromium, page_of_seven):
    right = "[...document.querySelectorAll('.scroll > table')]"
    right += ".map((one) => one.getBoundingClientRect().right)"
    sheet = round((21 - 2 * 1.4) / 2.54 * 96)  # A4 between the margins
    with chromium.open(page_of_seven, width=sheet) as tab:
        tab.run("dispatchEvent(new Event('beforeprint'))")
        tab.emulate(media="print")
        assert max(tab.run(right)) <= sheet


def test_on_a_phone_each_difference_stands_once(chromium, page_of_seven):
    cells = "[...document.querySelectorAll('.comparison td[data-label^=\"−\"]')]"
    shown = f"{cells}.filter((cell) => cell.checkVisibility()).length"
    for width, count in ((400, 21), (1400, 42)):
        with chromium.open(page_of_seven, width=width) as tab:
            assert tab.run(shown) == count


@pytest.mark.parametrize("width", [400, 1400])
def test_an_enlarged_picture_is_large_and_whole(chromium, page_of_seven, width):
    sizes = """[...document.querySelectorAll('%s')].map((one) => {
      const { left, top, right, bottom } = one.getBoundingClientRect();
      return [right - left, bottom - top, left >= 0 && top >= 0 && right <= innerWidth
              && bottom <= innerHeight];
    })"""
    with chromium.open(page_of_seven, width=width) as tab:
        tab.run("document.querySelector('.gallery img[data-truth]').click()")
        ((small, _, _),) = tab.run(sizes % ".row-of-pictures:first-child img[data-truth]")[:1]
        ((large, height, whole),) = tab.run(sizes % "#picture img")
        assert large > 2 * small and whole
        assert large / height == pytest.approx(60 / 40, rel=0.01)
        tab.press("d", 68)  # one over the other
        own, truth = tab.run(sizes % "#picture img")
        assert own == truth


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_of_models_stand_out(chromium, rich_page, scheme):
    own = """[...Array(8).keys()].map((i) => {
      const mark = document.createElement('p');
      mark.className = `c${i}`;
      mark.style.color = 'var(--own)';
      mark.textContent = 'mark';
      document.querySelector('main').append(mark);
    })"""
    with chromium.open(rich_page, scheme=scheme) as tab:
        tab.run(own)
        found = [ratio for ratio, html in tab.run(CONTRASTS) if "mark</p>" in html]
        assert len(found) == 8 and min(found) > 4.5


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
        assert titles[0].startswith("skip300.pth, skip, block 0: ")
        assert titles[-1].startswith("skipless300.pth, skipless, block 11")


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
