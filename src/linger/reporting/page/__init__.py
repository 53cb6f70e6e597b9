# SPDX-License-Identifier: Apache-2.0
"""Runs as one HTML page that needs nothing else: no network, no other file.

The data goes into the page as JSON that the browser never reads as markup, and a policy in the page forbids every script but
ours and every request. What stands in `page.html` between double braces is filled in here.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files

from linger.errors import refuse_if
from linger.reporting.facts import Run
from linger.reporting.verdict import Verdict, memory_needed, verdict_of

# one script in this order: each file may use the names of those before it
SCRIPTS = (
    *("elements.js", "figures.js", "state.js", "overview.js", "layout.js", "graph.js"),
    *("layers.js", "histogram.js", "panel.js", "memory.js", "evidence.js", "start.js"),
)
_ESCAPED = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def render_page(runs: Sequence[Run], title: str | None = None) -> str:
    """The page that shows one run, or several side by side, under a title, or under the names of the runs."""
    refuse_if(not runs, "A report needs at least one run; none was given. Give an ONNX file or a run's data.")
    script = "".join(_read(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    verdicts = [verdict_of(run) for run in runs]
    parts = {
        "title": html.escape(title or " / ".join(run.name for run in runs)),
        "policy": f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:",
        "style": _read("page.css"),
        "verdicts": "".join(_static_verdict(run, verdict) for run, verdict in zip(runs, verdicts, strict=True)),
        "data": _data(runs, verdicts, title),
        "script": script,
    }
    return _PLACE.sub(lambda place: parts[place[1]], _read("page.html"))


def inline_frame(page: str, *, height: int = 900) -> str:
    """A page inside a notebook: a frame that cannot reach the notebook around it."""
    return (
        f'<iframe srcdoc="{html.escape(page, quote=True)}" title="linger report" sandbox="allow-scripts" '
        f'allow="clipboard-write" style="width:100%;height:{height}px;border:0"></iframe>'
    )


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _data(runs: Sequence[Run], verdicts: Sequence[Verdict], title: str | None) -> str:
    """JSON without any sign that could end the element it stands in."""
    content = [
        {**json.loads(run.to_json(verdict.facts())), "memory_needed": memory_needed(run)}
        for run, verdict in zip(runs, verdicts, strict=True)
    ]
    text = json.dumps({"title": title or "", "runs": content}, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPED)


def _static_verdict(run: Run, verdict: Verdict) -> str:
    """What a reader sees where scripts are switched off."""
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in verdict.lines())
    level = verdict.level.replace(" ", "-")
    return (
        f'<article class="verdict level-{level}"><p class="verdict-run name">{html.escape(run.name)}</p>'
        f'<p class="verdict-word">{verdict.word}</p>'
        f'<h1 class="verdict-headline">{html.escape(verdict.headline)}</h1><ul class="reasons">{lines}</ul></article>'
    )
