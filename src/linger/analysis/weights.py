# SPDX-License-Identifier: Apache-2.0
"""wb_analyse: the distribution of every tensor of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from linger.analysis.batch_norms import folded_weights
from linger.analysis.checkpoint import Source, Stored, stored_tensors
from linger.analysis.magnitudes import measure
from linger.analysis.result import Analysis, Row
from linger.analysis.values import dtype_text, shape_text
from linger.errors import UsageError
from linger.progress import progress

_MOST_THREADS = 8
Given = TypeVar("Given")
Made = TypeVar("Made")


def wb_analyse(path: Source, save_log_path: str | os.PathLike[str] | None = "./wb_analyse.log") -> Analysis:
    """Mean, maximum and 0.99 order statistic of the magnitudes of every weight and bias, exactly.

    The log is the documented table; a row of `!` follows a tensor whose Versu = Max/Dynamic exceeds 10 (or that holds NaN
    or infinities): such a range is set by a few outliers and costs bits. Running statistics are left out. Files are
    mapped and read in pieces; nothing in them is executed. A second table below has the weights that come of folding batch
    norms into the convolutions that they follow by their names, with an eps of 1e-5. Weights of layers with limits
    (`normalize_layers`) are shown as the layer computes with them, where the model or the metadata of its state_dict tells.

    Args:
        path: A path (`.pt`, `.pth`, `.safetensors`, a sharded `*.index.json`), a state_dict, a checkpoint that
            holds one, or a module.
        save_log_path: Where the log goes; None: nowhere.

    Returns:
        The rows, with `to_json`, `to_csv`, and a table on a rich terminal.

    Raises:
        UsageError: The checkpoint cannot be read, would run code, or holds no tensor; the log cannot be written.
    """
    stored = stored_tensors(path)
    pairs = folded_weights(stored)
    effective = {pair.conv.name: pair.conv for pair in pairs}
    tensors = [effective.get(t.name, t) for t in stored if not is_running_statistic(t.name)]
    is_file = isinstance(path, (str, os.PathLike)) and save_log_path is not None
    if is_file and Path(path).resolve() == Path(save_log_path).resolve():  # type: ignore[arg-type]  # just asked
        raise UsageError(f"{path}: the log would replace the checkpoint. Choose another save_log_path.")
    rows = in_threads(_row, [*tensors, *(pair.weight for pair in pairs)], "analyse")
    made = Analysis(tuple(rows[: len(tensors)]), title="weights and biases", folded=tuple(rows[len(tensors) :]))
    if save_log_path is not None:
        made.save_log(Path(save_log_path))
    return made


def is_running_statistic(name: str) -> bool:
    """Whether a key names a running statistic, which is no parameter.

    >>> is_running_statistic("bn.running_mean"), is_running_statistic("running_man.weight")
    (True, False)
    """
    return name.rpartition(".")[2].startswith("running_")


def in_threads(work: Callable[[Given], Made], items: Iterable[Given], title: str) -> list[Made]:
    """Results for every item, in order; numpy leaves Python's lock while it computes."""
    waiting = list(items)
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS)) as pool:
        return list(progress(pool.map(work, waiting), title, total=len(waiting)))


def _row(tensor: Stored) -> Row:
    found = measure(tensor.open())
    shape, dtype = shape_text(tensor.shape), dtype_text(tensor.dtype)
    return Row.of(tensor.name, found, shape=shape, dtype=dtype, note=tensor.note)
