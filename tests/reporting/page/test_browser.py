"""The page in a headless Chromium: what a reader does, in one browser for all tests of this file."""

import dataclasses
import re

import pytest

from linger.reporting.facts import SEEN, Quality
from linger.reporting.page import inline_frame, render_page
from tests.support.browser import opened, required_chromium
from tests.support.report_runs import HOSTILE_NAMES, hostile, large, minimal, pair, small

ELEMENTS = 4000
PAGES = {
    "small": lambda: [small()],
    "large": lambda: [large()],
    "hostile": lambda: [hostile()],
    "minimal": lambda: [minimal()],
    "pair": lambda: list(pair()),
    "doubtful": lambda: [doubtful()],
    "middling": lambda: [middling()],
    "cautious": lambda: [cautious()],
}
NAMES = "[...document.querySelectorAll('tr[data-layer] .column-name')].map((cell) => cell.textContent)"
SELECTED = "document.querySelector('#panel h2').textContent"
FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def doubtful():
    """Float outputs differ, a float op has no layer, and not everything could be counted."""
    run = small()
    layers = tuple(dataclasses.replace(layer, runs_as="integer") for layer in run.layers)
    proof = dataclasses.replace(run.proof, is_exact=False, differing=0, first="torch has 0.3125")
    ops = ("model: sum (no integer form)",)
    return dataclasses.replace(
        run, layers=layers, proof=proof, float_ops=ops, notes=ops, is_lower_bound=True, form="dialect"
    )


def middling():
    """57 layers, some of which nobody has measured."""
    run = large()
    layers = [
        dataclasses.replace(each, sqnr_db=None, born_db=None) if i % 9 == 4 else each
        for i, each in enumerate(run.layers[:57])
    ]
    return dataclasses.replace(run, layers=tuple(layers))


def cautious():
    """Figures of several outputs with every doubt that there is."""
    said = ("the data to tune on are constant", "the data to judge by are constant")
    outputs = [Quality(f"signal to noise at output_{i}", 24.0 + i, unit="dB", output=f"output_{i}") for i in range(3)]
    first = Quality("signal to noise at the output", 26.0, unit="dB", samples=12, data=SEEN)
    return dataclasses.replace(middling(), target="", findings=(), quality=(first, *outputs), cautions=said)


@pytest.fixture(scope="module")
def browser():
    with opened(required_chromium()) as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("pages")
    for name, runs in PAGES.items():
        (made / f"{name}.html").write_text(render_page(runs()), encoding="utf-8")
    return made


@pytest.fixture
def show(browser, folder):
    """Opens a page; whatever the test did, the page has not complained and asked for nothing."""

    def opens(name, **options):
        browser.open(folder / f"{name}.html", **options)
        return browser

    yield opens
    assert browser.complaints() == []
    assert browser.dialogs() == []
    assert len(browser.requests()) == 1, "the page alone is loaded"


def body_text(page):
    return page.run("document.body.innerText")


SIZES = {"desktop": (1280, 800), "phone": (360, 740)}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_width_and_stays_small(show, name, size):
    width, height = size
    page = show(name, width=width, height=height, address="#layer=5")
    assert page.run("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
    assert page.run("document.querySelectorAll('*').length") <= ELEMENTS


def test_the_first_screen_says_the_verdict_and_the_figures(show):
    page = show("small")
    assert page.run("document.title") == "Ready: digits"
    assert page.run("document.querySelector('h1').textContent").startswith("Bit-exact, fits venus, 99.4 %")
    cards = page.run(
        "[...document.querySelectorAll('.card')].map((card) => [card.dataset.card, card.getBoundingClientRect().bottom])"
    )
    assert [title for title, _ in cards] == [
        "Proof",
        "Quality",
        "Weights",
        "Work",
        "Working memory",
        "Stayed float",
        "Findings",
    ]
    assert max(bottom for _, bottom in cards) <= 800
    text = page.run("document.querySelector('#cards').innerText")
    for part in ("0 differ", "of 1,843,200 integers", "97.8 → 97.5 %", "4.0 times smaller", "2.05 M MACs", "64.0 KiB"):
        assert part in text


def test_the_parts_of_the_verdict_are_shown_apart(show):
    shown = "[...document.querySelectorAll('#verdict .part')].map((part) => part.querySelector('.badge').className)"
    page = show("small")
    assert page.run(shown) == ["badge good"] * 3
    page = show("large")
    assert page.run(shown) == ["badge good", "badge warning", "badge warning"]
    first = page.run("document.querySelector('#panel .part').innerText")
    assert "good enough: doubtful" in first
    assert "The quality is low: 98.2 % agreement" in first
    assert "→" in first, "what to do about it"
    assert page.run("document.querySelector('#panel .parts').getBoundingClientRect().top") < page.run(
        "document.querySelector('#panel .suggestions').getBoundingClientRect().top"
    )


CUT = """[...document.querySelectorAll('.verdict-headline, .part-sentence, .part-remedy')]
  .filter((text) => text.getClientRects().length && (text.scrollHeight > text.clientHeight + 1 || text.clientHeight === 0)).map((text) => text.textContent)"""


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", ["small", "large", "minimal", "cautious"])
def test_what_the_verdict_says_and_what_to_do_is_never_cut(show, name, size):
    page = show(name, width=size[0], height=size[1])
    assert page.run("document.querySelectorAll('.verdict-headline').length") == 1
    assert page.run("document.querySelectorAll('#verdict .part-sentence').length") == 3
    assert page.run(CUT) == []


def test_what_nobody_measured_is_not_green(show):
    page = show("minimal")
    assert page.run("document.querySelector('.card[data-card=Quality]').className") == "card wide warning"
    assert "good enough: not known" in body_text(page)


def test_what_differs_stayed_float_or_was_not_counted_is_said(show):
    page = show("doubtful")
    text = body_text(page)
    for part in (
        "Outputs differ",
        "outputs differ\n1,843,200 integers equal",
        "of the simulation, not of the file",
        "1 op\nwithout a layer of its own\nmodel: sum",
        "≥ 2.05 M MACs",
        "ONNX with linger’s operators (dialect form)",
    ):
        assert part in text


def test_a_card_leads_to_its_section(show):
    page = show("small", address="#layer=3")
    page.click(".card[data-card='Working memory']")
    assert page.run("Math.abs(document.querySelector('#memory').getBoundingClientRect().top) < 100")
    assert page.run("location.hash") == "#layer=3", "the selection stays in the address"


def test_what_nobody_measured_is_left_out(show):
    page = show("minimal")
    assert page.run("[...document.querySelectorAll('main section')].every((section) => section.hidden)")
    assert "Not proven" in body_text(page)
    assert "undefined" not in body_text(page)
    assert "NaN" not in body_text(page)


def test_without_a_script_the_verdict_stands_there(show):
    page = show("small", script=False)
    text = page.run("document.body.innerText")
    assert "Bit-exact, fits venus, 99.4 % agreement" in text
    assert "needs JavaScript" in text


def test_rows_are_sorted_by_a_click_and_turned_by_another(show):
    page = show("small")
    assert page.run(NAMES)[0] == "input/quant"
    page.click("th[data-key='sqnr_db'] button")
    assert page.run(NAMES)[0] == "features/block/conv_b"
    assert page.run("document.querySelector('th[data-key=sqnr_db]').getAttribute('aria-sort')") == "ascending"
    page.click("th[data-key='sqnr_db'] button")
    assert page.run(NAMES)[0] == "input/quant"
    page.click("th[data-key='macs'] button")
    assert page.run(NAMES)[:2] == ["features/block/conv_a", "features/block/conv_b"]


def test_every_column_can_be_sorted(show):
    page = show("small")
    keys = page.run("[...document.querySelectorAll('th[data-key]')].map((head) => head.dataset.key)")
    assert {"name", "shape", "bits", "formats", "sqnr_db", "born_db", "passed_db", "clipped", "macs", "advice"} <= {
        *keys
    }
    for key in keys:
        page.click(f"th[data-key='{key}'] button")
        assert (
            page.run(f"document.querySelector('th[data-key={key}]').getAttribute('aria-sort')") != "none"
            or key == "index"
        )
        assert len(page.run(NAMES)) == 12


def test_rows_are_filtered_by_text_and_by_quick_filters(show):
    page = show("small")
    page.press("/")
    page.send("Input.insertText", text="LINEAR")
    assert page.run(NAMES) == ["classifier"]
    page.send("Input.insertText", text=" no such layer")
    assert page.run(NAMES) == []
    page.click("#layers .empty button")
    assert len(page.run(NAMES)) == 12
    page.click("[data-quick=advice]")
    assert page.run(NAMES) == ["features/conv1", "features/block/conv_b"]
    assert page.run("document.querySelector('#layers [role=status]').textContent") == "2 of 12 layers"
    page.click("[data-quick=advice]")
    assert len(page.run(NAMES)) == 12


def test_a_row_is_chosen_by_a_click(show):
    page = show("small")
    page.click("tr[data-layer='6'] .column-name")
    assert page.run(SELECTED) == "features/block/conv_b"
    assert page.run("location.hash") == "#layer=7"
    assert page.run("document.querySelector('tr.selected').dataset.layer") == "6"
    assert page.run("document.querySelectorAll('.box.selected').length") == 1
    panel = page.run("document.querySelector('#panel').innerText")
    for part in ("equalize the channels", "24.6 dB", "28.6 dB", "8/8/8", "Q2.5 × Q0.7 → Q2.5"):
        assert part in panel


def test_a_row_is_chosen_by_keys(show):
    page = show("small")
    page.run("document.querySelector('tr[data-layer=\"0\"]').focus()")
    page.press("ArrowDown", "ArrowDown", "Enter")
    assert page.run(SELECTED) == "features/relu1"
    page.press("Escape")
    assert page.run(SELECTED) == "Where to look first"
    assert page.run("location.hash") in ("", "#")


def test_a_box_of_the_graph_is_chosen_by_a_click(show):
    page = show("small")
    place = page.run(
        "[...document.querySelectorAll('.box')].findIndex((box) => box.textContent.startsWith('classifier'))"
    )
    page.run(f"document.querySelectorAll('.box')[{place}].setAttribute('data-wanted', '')")
    page.click("[data-wanted]")
    assert page.run(SELECTED) == "classifier"
    assert page.run("document.querySelector('tr.selected').dataset.layer") == "10"


def test_a_box_of_the_graph_is_chosen_by_keys(show):
    page = show("small")
    page.run("document.querySelector('.canvas').focus()")
    page.press("ArrowDown", "ArrowDown", "ArrowDown")
    assert page.run(
        "document.getElementById(document.activeElement.getAttribute('aria-activedescendant')).textContent"
    ) == ("features/relu1Relu · 38.0 dB")
    page.press("Enter")
    assert page.run(SELECTED) == "features/relu1"
    page.press("ArrowUp", "Enter")
    assert page.run(SELECTED) == "features/conv1"


def test_the_graph_zooms_and_moves(show):
    page = show("small")
    where = "document.querySelector('.canvas svg > g').getAttribute('transform')"

    def scale():
        return float(re.search(r"scale\(([\d.]+)\)", page.run(where))[1])

    first = scale()
    page.click("#graph .buttons button:nth-child(2)")
    page.run(FRAME)
    assert scale() == pytest.approx(first * 1.25)
    page.run("document.querySelector('.canvas').focus()")
    page.press("-", "-")
    page.run(FRAME)
    assert scale() == pytest.approx(first * 0.8)
    page.press("0")
    page.run(FRAME)
    assert scale() == pytest.approx(first)
    frame = page.run(
        "(() => { const f = document.querySelector('.canvas').getBoundingClientRect(); return [f.x + 9, f.y + 9]; })()"
    )
    page.send("Input.dispatchMouseEvent", type="mouseWheel", x=frame[0], y=frame[1], deltaX=0, deltaY=-120, modifiers=2)
    page.run(FRAME)
    assert scale() > first
    before = page.run(where)
    for kind, x in (("mousePressed", 60), ("mouseMoved", 40), ("mouseMoved", 0), ("mouseReleased", 0)):
        page.send(
            "Input.dispatchMouseEvent", type=kind, x=frame[0] + x, y=frame[1], button="left", buttons=1, clickCount=1
        )
    page.run(FRAME)
    assert page.run(where) != before


def test_the_table_of_layers_has_the_whole_width(show):
    page = show("middling")
    table, frame, main = page.run(
        "['table.layers', '#layers .scroll', 'main'].map((name) => document.querySelector(name).scrollWidth)"
    )
    assert table <= frame, "no column is cut off"
    assert frame >= 0.9 * main
    page.click("tr[data-layer='20'] .column-name")
    top, bottom, height = page.run(
        "(() => { const f = document.querySelector('#panel h2').getBoundingClientRect(); return [f.top, f.bottom, innerHeight]; })()"
    )
    assert 0 <= top < bottom <= height, "the chosen layer is in view"


BOXES = """[...document.querySelectorAll('.box')].map((box) => {
  const frame = box.querySelector('rect').getBoundingClientRect();
  const texts = [...box.querySelectorAll('text')].map((text) => text.getBoundingClientRect());
  return [Math.max(...texts.map((text) => text.right)) - frame.right, Math.min(...texts.map((text) => text.height)), box.textContent];
})"""


def test_boxes_of_many_layers_keep_their_text_and_are_scrolled_to(show):
    page = show("middling")
    boxes = page.run(BOXES)
    assert len(boxes) >= 20
    assert max(beyond for beyond, _, _ in boxes) <= 0, "no text leaves its box"
    assert min(height for _, height, _ in boxes) >= 11, "it can be read"
    assert page.run(
        "(() => { const c = document.querySelector('.canvas'); return c.scrollHeight > c.clientHeight + 100; })()"
    )
    assert not any("_56" in text for _, _, text in boxes)
    page.run("document.querySelector('.canvas').scrollTo({ left: 1e6, top: 1e6 })")
    page.run(FRAME)
    assert any("_56" in text for _, _, text in page.run(BOXES))
    page.click("#graph .buttons button:nth-child(3)")
    page.run(FRAME)
    assert (
        page.run("(() => { const c = document.querySelector('.canvas'); return c.scrollHeight - c.clientHeight; })()")
        == 0
    )


def test_what_nobody_measured_looks_unlike_what_is_good(show):
    for dark in (False, True):
        page = show("middling", dark=dark)
        look = "(name) => { const s = getComputedStyle(document.querySelector(name)); return [s.fill, s.strokeDasharray, s.backgroundColor, s.borderTopStyle]; }"
        good, unknown = (page.run(f"({look})('.box.{kind} rect')") for kind in ("error-0", "unknown"))
        assert good[0] != unknown[0]
        assert (good[1], unknown[1] != "none") == ("none", True), "not by color alone"
        good, unknown = (page.run(f"({look})('.legend .swatch.{kind}')") for kind in ("error-0", "unknown"))
        assert good[2] != unknown[2]
        assert (good[3], unknown[3]) == ("solid", "dashed")
        assert "not measured" in page.run("document.querySelector('.box.unknown').textContent")


COLORINGS = {
    "error": ("error-", "dB"),
    "born": ("error-", "dB"),
    "macs": ("cost-", "MACs"),
    "memory": ("cost-", "iB"),
    "kind": ("kind-", "integer"),
}


def test_the_graph_is_colored_and_the_legend_says_how(show):
    page = show("small")
    for name, (kind, text) in COLORINGS.items():
        page.run(
            f"(() => {{ const c = document.querySelector('#coloring'); c.value = '{name}'; c.dispatchEvent(new Event('change')); }})()"
        )
        assert page.run(f"document.querySelectorAll('.box[class*={kind}]').length") == 12, name
        assert page.run(f"document.querySelectorAll('.legend .swatch[class*={kind}]').length") >= 3
        assert text in page.run("document.querySelectorAll('.box')[2].textContent")


def test_a_histogram_shows_the_grid_the_ends_of_the_range_and_the_float_model(show):
    page = show("small", address="#layer=7")
    # Q2.5 has 256 values from −4 to 3.96875; one line per 8 of them makes 32
    assert page.run("document.querySelector('.histogram .grid').dataset.lines") == "32"
    assert page.run("document.querySelectorAll('.histogram .clip').length") == 2
    labels = "[...document.querySelectorAll('.clip-label')].map((label) => label.textContent)"
    assert page.run(labels) == ["clips at −4", "clips at 3.9688"]
    assert page.run("document.querySelectorAll('.histogram .values, .histogram .reference').length") == 2
    linear = page.run("document.querySelector('.histogram .values').getAttribute('d')")
    page.click("#log")
    assert page.run("document.querySelector('.histogram .values').getAttribute('d')") != linear
    assert page.run("document.activeElement.id") == "log"
    page.run(
        "(() => { const t = document.querySelector('#tensor'); t.value = '2'; t.dispatchEvent(new Event('change')); })()"
    )
    assert page.run("document.querySelector('.histogram').getAttribute('aria-label')").startswith(
        "Histogram of features/block/conv_b.weight, Q0.7"
    )


def test_a_link_leads_to_a_layer(show):
    page = show("small", address="#layer=11&theme=dark")
    assert page.run(SELECTED) == "classifier"
    assert page.run("document.documentElement.dataset.theme") == "dark"
    page.run("location.hash = '#layer=2'")
    page.run("new Promise((done) => setTimeout(done))")
    assert page.run(SELECTED) == "features/conv1"


def test_the_ends_of_a_range_whose_zero_is_another_integer(show, folder):
    run = small()
    shifted = tuple(dataclasses.replace(tensor, dtype="uint8", zero=128) for tensor in run.tensors)
    (folder / "shifted.html").write_text(render_page([dataclasses.replace(run, tensors=shifted)]), encoding="utf-8")
    page = show("shifted", address="#layer=1")
    labels = "[...document.querySelectorAll('.clip-label')].map((label) => label.textContent)"
    assert page.run(labels) == ["clips at −4", "clips at 3.9688"]


@pytest.mark.parametrize("address", ["#layer=99999", "#layer=-1", "#run=7&layer=x", "#%E0%A4%A", "#memory"])
def test_a_broken_link_shows_the_page(show, address):
    page = show("small", address=address)
    assert page.run(SELECTED) == "Where to look first"


def test_findings_lead_to_their_layer(show):
    page = show("small")
    page.click("#findings button.link")
    assert page.run(SELECTED) == "features/conv1"
    assert "Remedy: Give the layer 8 input channels" in page.run("document.querySelector('#findings').innerText")


def test_tuning_sensitivity_memory_and_certificate_are_shown(show):
    page = show("small")
    text = body_text(page)
    for part in ("equalize(channels)", "+1.8 dB", "−0.8 dB", "dropped", "31.6 dB → –", "46 %", "peak 25.3 KiB"):
        assert part in text
    for part in ("9f2c" * 16, "AMD EPYC", "onnxruntime", "linger quantize digits.py:net --data digits.npz"):
        assert part in text
    assert page.run("document.querySelector('#settings details').open") is False
    page.click("#certificate .repeat button")
    page.run("new Promise((done) => setTimeout(done))")
    assert page.run("document.querySelector('#certificate .repeat button').textContent") != "Copy"


def test_runs_stand_side_by_side_and_are_switched(show):
    page = show("pair")
    text = page.run("document.querySelector('#runs').innerText")
    for part in ("Needs attention", "digits-plain", "−1.6", "24.6 dB −5.8", "Chip\tvenus\tvenus", "Bits\t8/8/8"):
        assert part in text
    lines = page.run("[...document.querySelectorAll('.run-lines li')].map((line) => line.innerText)")
    assert [line.split(" ", 1)[1] for line in lines] == ["Ready digits", "Needs attention digits-plain"]
    assert "features/block/relu" not in text, "it has no layer of its name in the other run"
    page.click("tr[data-layer='6']")
    page.run(
        "(() => { const r = document.querySelector('#run'); r.value = '1'; r.dispatchEvent(new Event('change')); })()"
    )
    assert page.run("document.querySelector('h1').textContent").endswith("97.8 % agreement with the float model")
    assert page.run("location.hash") == "#run=2&layer=7"
    assert "20.1 dB" in page.run("document.querySelector('#panel').innerText")
    assert page.run("document.querySelector('#tuning').hidden")
    page.click(".run-lines li:first-child button")
    assert page.run("document.querySelector('#run').value") == "0"
    assert page.run("location.hash") == "#layer=7"


def test_names_out_of_a_file_are_only_text(show):
    page = show("hostile", address="#layer=2")
    assert page.run("document.querySelectorAll('img, iframe, script').length") == 2, "the data and our script"
    assert page.run(SELECTED) == HOSTILE_NAMES[1]
    shown = page.run("[...document.querySelectorAll('tr[data-layer] .column-name .name')].map((cell) => cell.title)")
    assert shown == list(HOSTILE_NAMES)
    for index in range(len(HOSTILE_NAMES)):
        page.run(f"location.hash = '#layer={index + 1}'")
        page.run("new Promise((done) => setTimeout(done))")
        assert page.run(SELECTED) == HOSTILE_NAMES[index]


def test_five_hundred_layers_stay_a_bounded_page(show):
    page = show("large")
    counted = "document.querySelectorAll('*').length"
    assert len(page.run(NAMES)) == 40
    page.click("#graph .buttons button:nth-child(3)")
    page.run(FRAME)
    assert page.run(counted) <= ELEMENTS
    page.click("#layers .pager button:last-child")
    assert page.run(NAMES)[0].endswith("_40")
    page.run("location.hash = '#layer=451'")
    page.run("new Promise((done) => setTimeout(done))")
    assert page.run("document.querySelector('tr.selected').dataset.layer") == "450"
    assert page.run(counted) <= ELEMENTS
    page.click(".card[data-card='Stayed float']")
    assert len(page.run(NAMES)) == 6


CONTRAST = """(() => {
  const luminance = (color) => {
    const parts = color.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const backOf = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const box = at.matches('.box') ? getComputedStyle(at.querySelector('rect')).fill : getComputedStyle(at).backgroundColor;
      if (!/^rgba\\(.*, 0\\)$/.test(box) && box !== 'none') return box;
    }
    return 'rgb(255, 255, 255)';
  };
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    if (element.closest('.memory, noscript, [hidden]') || !element.checkVisibility()) continue;
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const isDrawn = element.namespaceURI.endsWith('svg');
    const style = getComputedStyle(element);
    const [one, other] = [isDrawn ? style.fill : style.color, backOf(element)].map(luminance);
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5 && !element.closest(':disabled')) found.push(`${element.tagName}.${element.getAttribute('class')} ${element.textContent.slice(0, 20)} ${ratio.toFixed(2)}`);
  }
  return found;
})()"""


@pytest.mark.parametrize("name", ["small", "large", "hostile", "minimal"])
def test_texts_can_be_read_in_both_themes(show, name):
    backs = set()
    for dark in (False, True):
        page = show(name, dark=dark, address="#layer=7")
        assert page.run(CONTRAST) == []
        backs.add(page.run("getComputedStyle(document.body).backgroundColor"))
    assert len(backs) == 2


def test_the_theme_is_turned_by_a_button(show):
    page = show("small")
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.run(back)
    page.click("#theme")
    assert page.run(back) != light
    assert page.run("location.hash") == "#theme=dark"
    page.click("#theme")
    assert page.run(back) == light


def test_everything_can_be_reached_by_the_tab_key_and_is_named(show):
    page = show("small", address="#layer=7")
    seen = set()
    for _ in range(60):
        page.press("Tab")
        seen.add(
            page.run("document.activeElement.id || document.activeElement.className || document.activeElement.tagName")
        )
        assert page.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert {"theme", "coloring", "canvas", "layer-filter", "card good"} <= seen
    unnamed = "[...document.querySelectorAll('button, a, select, input, [role=img], [role=region]')].filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim())).length"
    assert page.run(unnamed) == 0


def test_a_page_prints_without_its_controls(show):
    page = show("small")
    page.send("Emulation.setEmulatedMedia", media="print", features=[])
    shown = "[...document.querySelectorAll('.bar, .filters')].map((part) => getComputedStyle(part).display)"
    assert set(page.run(shown)) == {"none"}
    page.send("Emulation.setEmulatedMedia", media="", features=[])


def test_a_frame_in_a_notebook_shows_the_page(browser, tmp_path):
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><body>{inline_frame(render_page([small()]))}", encoding="utf-8")
    browser.open(file)
    with browser.inside_frame():
        browser.run("document.querySelector('tr[data-layer=\"6\"]').click()")
        assert browser.run(SELECTED) == "features/block/conv_b"
        browser.run("document.querySelector('.card').click()")
        assert browser.run("location.href").startswith("about:srcdoc")
    assert browser.complaints() == []
