# SPDX-License-Identifier: Apache-2.0
"""A settings file read as a `Config`, with every complaint at once: in linger's own words, or in those of linger 3.x."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from linger.errors import UsageError, listing
from linger.quantization.setup.config_file import Config, joined
from linger.quantization.setup.newer_file import DEFAULT_PLATFORM, from_newer, is_newer, newer_problems, of_both_kinds
from linger.records.reading import read_with_problems

_MOST_ENTRIES = 10_000_000
"""Larger than any model's file."""


def read_config(path: str | Path) -> Config:
    """Read a file, linger's own or one of linger 3.x.

    Raises:
        UsageError: It cannot be read, is no YAML, or holds what means nothing here; every such place is named.
    """
    if not isinstance(path, (str, Path)):
        raise UsageError(
            f"config_file: the path of a file is expected, not {path!r}. Types that stay float are given as disable_module=[…]."
        )
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_OnceOnly)
        _refuse_bomb(content)
    except OSError as error:
        raise UsageError(f"config_file: {path} cannot be read ({error.strerror or error}).") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"config_file: {path} is no YAML: {' '.join(str(error).split())}.") from error
    if content is None:
        raise UsageError(f"config_file: {path} is empty. Write settings into it, or leave the argument out.")
    both = of_both_kinds(content)
    if both is not None:
        raise UsageError(
            f"config_file: {path} has keys of two kinds: {listing(both[0])} of linger, {listing(both[1])} of linger 3.x. "
            "Write all of it in the words of one. Nothing was changed."
        )
    if is_newer(content):
        return newer_config(content, f"config_file: {path}")
    problems, config = read_with_problems(Config, content)
    if config is None:
        raise UsageError(f"config_file: {path}: {joined(problems)}. Nothing was changed.")
    return config


def newer_config(content: Mapping[str, Any], where: str, *, platform: str | None = DEFAULT_PLATFORM) -> Config:
    """The meaning of settings in the words of linger 3.x; `platform` is the chip where they name none.

    Raises:
        UsageError: Something has no meaning here; every such place is named.
    """
    problems = newer_problems(content)
    if problems:
        raise UsageError(f"{where}: {joined(problems)}. Nothing was changed.")
    return from_newer(content, platform)


class _OnceOnly(yaml.SafeLoader):
    """Plain data only; a key that stands twice is an error instead of silently winning."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - yaml's signature
        """A mapping of distinct keys."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = [key for i, key in enumerate(keys) if key in keys[:i]]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]!r} stands twice", node.start_mark)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def _refuse_bomb(content: object) -> None:
    """Refuse data in which aliases stand for so much that no memory holds it, or for what they are part of."""
    sizes: dict[int, float] = {}

    def size(item: object) -> float:
        parts = [*item, *item.values()] if isinstance(item, dict) else item if isinstance(item, list) else ()
        if id(item) not in sizes:
            sizes[id(item)] = math.inf  # until it is known: what holds itself has no end
            sizes[id(item)] = 1 + sum(map(size, parts))
        return sizes[id(item)]

    if size(content) > _MOST_ENTRIES:
        raise yaml.YAMLError("its aliases stand for too much")
