"""What a translated page must have in common with the English one: headings, code, names, links, rows of tables and lists."""

import re

FENCE = re.compile(r"^ *```(.*)$")
CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DRAWN = ("text", "")
"""Blocks for people: drawings and what commands print, whose words may be translated."""


def differences(english, chinese):
    """A sentence for each kind of thing that the pages do not have in common."""
    kinds = {
        "headings": headings,
        "code blocks": code_blocks,
        "names in code": names,
        "links": links,
        "rows of tables": rows,
        "items of lists": items,
    }
    return [
        f"{name}: {theirs} in English, {ours} in Chinese"
        for name, read in kinds.items()
        if (theirs := read(english)) != (ours := read(chinese))
    ]


def parts(text):
    """Prose lines, and the fenced blocks as (language, lines)."""
    prose, blocks, inside = [], [], None
    for line in text.splitlines():
        fence = FENCE.match(line)
        if fence and inside is None:
            inside = (fence[1].strip(), [])
        elif fence:
            blocks.append(inside)
            inside = None
        elif inside is not None:
            inside[1].append(line)
        else:
            prose.append(line)
    return prose, blocks


def headings(text):
    """The levels of the headings."""
    return [len(line) - len(line.lstrip("#")) for line in parts(text)[0] if re.match(r"#{1,6} ", line)]


def code_blocks(text):
    """The blocks without comments; of those that are drawn, only that they are there."""
    return [
        (info, [] if info in DRAWN else [_without_comment(line) for line in lines]) for info, lines in parts(text)[1]
    ]


def _without_comment(line):
    return re.sub(r"(^|\s)#.*$", "", line).rstrip()


def names(text):
    """What the prose names as code, such as commands and options; sentences may come in another order."""
    return sorted({" ".join(name.split()) for name in CODE.findall("\n".join(parts(text)[0]))})


def links(text):
    """Where the links lead, in order, whichever language of a page they name."""
    found = LINK.findall("\n".join(parts(text)[0]))
    return [re.sub(r"\.zh(-CN)?\.md", ".md", target) for target in found]


def rows(text):
    """How many rows of tables there are."""
    return sum(line.startswith("|") for line in parts(text)[0])


def items(text):
    """How many items of lists there are."""
    return sum(bool(re.match(r" *(?:[-*]|\d+\.) ", line)) for line in parts(text)[0])
