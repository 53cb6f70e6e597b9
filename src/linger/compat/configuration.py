# SPDX-License-Identifier: Apache-2.0
"""QUANT_CONFIGS and what belongs to it: the settings of linger 3.x, kept for this thread or task only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any

from torch import nn

from linger.errors import UsageError, listing
from linger.quantization.core.supported import SETTERS, SWITCHES, supported_types
from linger.quantization.setup.config import save_config
from linger.quantization.setup.config_file import unknown, write_config
from linger.quantization.setup.config_reader import newer_config
from linger.quantization.setup.newer_file import DEFAULT_CLAMP, DEFAULT_QUANT, DEFAULTS, unsaid_method
from linger.settings import choose, choose_newer, keep_float, newer_settings

_SECTIONS: Mapping[str, Mapping[str, Any]] = {"clamp_info": DEFAULT_CLAMP, "quant_info": DEFAULT_QUANT}


class UnknownSettingError(UsageError, AttributeError):
    """There is no setting of this name; also what Python expects where an attribute is missing."""


class QuantConfigs:
    """The settings of linger 3.x under their names, to read and to write.

    `linger.QUANT_CONFIGS.quant_info.weight_bits = 4` holds for the models that this thread or task constrains and initialises
    afterwards without a file. It keeps nothing itself; another thread sees its own settings. A name or value that means nothing
    is refused.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name in _SECTIONS:
            return ConfigSection(name)
        _known(name, DEFAULTS, "QUANT_CONFIGS")
        return newer_settings().get(name, None if name == "platform" else DEFAULTS[name])

    def __setattr__(self, name: str, value: Any) -> None:
        _known(name, DEFAULTS, "QUANT_CONFIGS")
        if name in _SECTIONS and not isinstance(value, Mapping):
            raise UsageError(f"QUANT_CONFIGS.{name}: a mapping is expected, not {value!r}.")
        _set(name, dict(value) if name in _SECTIONS else _plain(value))

    def __dir__(self) -> list[str]:
        return list(DEFAULTS)

    def __repr__(self) -> str:
        return f"QUANT_CONFIGS({', '.join(f'{key}={value!r}' for key, value in newer_settings().items())})"


class ConfigSection:
    """A section of the settings, `quant_info` or `clamp_info`."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __getattr__(self, name: str) -> Any:
        known = _SECTIONS[self._name]
        _known(name, known, f"QUANT_CONFIGS.{self._name}")
        said = newer_settings().get(self._name, {})
        return said.get(name, unsaid_method(said) if name == "a_calibrate_name" else known[name])

    def __setattr__(self, name: str, value: Any) -> None:
        _known(name, _SECTIONS[self._name], f"QUANT_CONFIGS.{self._name}")
        _set(self._name, {**newer_settings().get(self._name, {}), name: _plain(value)})

    def __dir__(self) -> list[str]:
        return list(_SECTIONS[self._name])

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(f'{key}={getattr(self, key)!r}' for key in dir(self))})"


QUANT_CONFIGS = QuantConfigs()
"""The settings of linger 3.x, see `QuantConfigs`."""


def _known(name: str, known: Iterable[str], where: str) -> None:
    names = list(known)
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"Is {near[0]} meant?" if near else f"Known: {listing(names)}."
        raise UnknownSettingError(f"{where} has no setting {name!r}. {hint}")


def _plain(value: Any) -> Any:
    """A member of an enumeration as its name, a type of torch as its own."""
    return value.name if isinstance(value, Enum) else str(value) if type(value).__module__ == "torch" else value


def _set(key: str, value: Any) -> None:
    content = {**newer_settings(), key: value}
    if key == "platform" and value is None:
        del content[key]
    newer_config(content, "QUANT_CONFIGS")  # raises where it means nothing
    choose_newer(content)


def config_save_to_yaml(yaml_save_path: str | Path, model: nn.Module | None = None) -> None:
    """Write the settings of `QUANT_CONFIGS`, or all that was decided about a quantised model, as a file that `init` reads.

    Args:
        yaml_save_path: The file; it is linger's own format, which `save_config` writes.
        model: A quantised model; None: the settings of this context, which know no model.

    Raises:
        UsageError: The model is not quantised, or the file cannot be written.
    """
    if model is not None:
        save_config(model, yaml_save_path)
    else:
        write_config(newer_config(newer_settings(), "QUANT_CONFIGS", platform=None), "a model", yaml_save_path)


def disable_quant_ops(
    qmodule_list: Iterable[type[nn.Module] | str] = (), qtensor_list: Iterable[Callable[..., Any] | str] = ()
) -> None:
    """Keep layer types and functions float in the models that this thread or task initialises afterwards.

    Args:
        qmodule_list: Types (`nn.Conv2d`) or their names; subclasses are meant, too.
        qtensor_list: Functions (`torch.add`) or names of switches, as `get_quant_ops_name` lists them.

    Raises:
        UsageError: A type or function has no integer form that could be left out; every such one is named.
    """
    by_name = {kind.__name__: kind for kind in supported_types()}
    types = {_name(item): by_name.get(item) if isinstance(item, str) else _supported(item) for item in qmodule_list}
    functions = {_name(item): _switches_of(item) for item in qtensor_list}
    problems = [unknown("qmodule_list", name, by_name) for name, kind in types.items() if kind is None]
    problems += [unknown("qtensor_list", name, SETTERS) for name, found in functions.items() if not found]
    if problems:
        raise UsageError(f"disable_quant_ops: {'; '.join(problems)}. Nothing was changed.")
    keep_float(tuple(kind for kind in types.values() if kind is not None))
    choose(**{switch: False for found in functions.values() for switch in found})


def get_quant_ops_name() -> tuple[list[str], list[str]]:
    """The names of the layer types that `init` may quantise, and of the functions that can be switched off."""
    return [kind.__name__ for kind in supported_types()], list(SETTERS)


def _switches_of(item: Callable[..., Any] | str) -> tuple[str, ...]:
    """The first switch of a function: attention, which has several, is kept float by one of them."""
    if isinstance(item, str):
        return (item,) if item in SETTERS else ()
    return SWITCHES.get(item, ())[:1] if callable(item) else ()


def _supported(item: object) -> type[nn.Module] | None:
    return next((kind for kind in supported_types() if kind is item), None)


def _name(item: object) -> str:
    return item if isinstance(item, str) else str(getattr(item, "__name__", item))
