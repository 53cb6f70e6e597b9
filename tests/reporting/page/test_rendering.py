"""The page as text: whole, closed, and with nothing of a model in its markup."""

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser

import pytest

from linger.errors import UsageError
from linger.reporting.page import SCRIPTS, inline_frame, render_page
from tests.conftest import REPOSITORY
from tests.support.report_runs import HOSTILE_NAMES, hostile, large, minimal, pair, small

PAGE = REPOSITORY / "src" / "linger" / "reporting" / "page"


class Reader(HTMLParser):
    """Counts elements, and keeps attributes and texts by element."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts = [], {}
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        tag, attributes = self.elements[-1] if self.elements else ("", {})
        key = attributes.get("id") or attributes.get("type") or tag
        self.texts[key] = self.texts.get(key, "") + data


@pytest.mark.parametrize("run", [small(), hostile(), minimal()], ids=["small", "hostile", "minimal"])
def test_the_data_can_be_read_back(run):
    content = json.loads(Reader(render_page([run])).texts["data"])
    (found,) = content["runs"]
    assert {key: found[key] for key in json.loads(run.to_json())} == json.loads(run.to_json())


def test_hostile_names_add_no_element():
    def shape(page):
        return [tag for tag, _ in Reader(page).elements if tag not in ("li", "ul")]

    assert shape(render_page([hostile()])) == shape(render_page([minimal()]))
    data = re.search(r'id="data">(.*?)</script>', render_page([hostile()]), re.DOTALL)[1]
    assert not re.search("[<>&\u2028\u2029]", data)


def test_the_policy_names_our_script_and_nothing_else():
    page = render_page([small()])
    script = re.search(r'<script type="module">(.*?)</script>', page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [a["content"] for tag, a in Reader(page).elements if tag == "meta" and "http-equiv" in a]
    assert policy == f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"


def test_nothing_is_loaded_from_elsewhere():
    for tag, attributes in Reader(render_page([small()])).elements:
        assert not {"src", "srcset", "action"} & set(attributes), tag
        assert attributes.get("href", "#").startswith("#")


def test_the_verdict_can_be_read_without_a_script():
    page = render_page(pair())
    assert page.index("Bit-exact, fits venus, 99.4 % agreement") < page.index('<script type="application/json"')
    assert "Bit-exact, fits venus, 97.8 % agreement" in page


def test_a_page_is_the_same_every_time_and_small():
    assert render_page([small()]) == render_page([small()])
    assert len(render_page([small()]).encode()) < 400_000
    assert len(render_page([large()]).encode()) < 10_000_000


def test_a_title_is_text():
    page = render_page([minimal()], title=HOSTILE_NAMES[1])
    assert html.escape(HOSTILE_NAMES[1]) in page
    assert HOSTILE_NAMES[1] not in page


def test_a_page_needs_a_run():
    with pytest.raises(UsageError, match="at least one run"):
        render_page([])


def test_a_frame_holds_the_page_and_keeps_it_in():
    page = render_page([hostile()])
    ((tag, attributes),) = Reader(inline_frame(page)).elements
    assert (tag, attributes["srcdoc"], attributes["sandbox"]) == ("iframe", page, "allow-scripts")


def test_scripts_are_short_complete_and_never_write_markup():
    assert sorted(SCRIPTS) == sorted(file.name for file in PAGE.glob("*.js"))
    for name in SCRIPTS:
        text = (PAGE / name).read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 400, name
        assert text.startswith("// "), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|</", text)
