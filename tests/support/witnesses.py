"""Witnesses for tests: a file's own session as another computation, with faults."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from linger import Session


@dataclass
class Fake:
    """A witness that computes what a file computes, one sample at a time where a shape is given.

    `tensors` and `outputs` replace arrays, by a function of the array or by None, which leaves the tensor out. `error` is raised by
    every call.
    """

    file: object
    description: str = "the chip"
    shapes: dict = field(default_factory=dict)
    tensors: dict = field(default_factory=dict)
    outputs: dict = field(default_factory=dict)
    error: Exception | None = None
    asked: list = field(default_factory=list)

    def __post_init__(self):
        self._session = Session(self.file)

    def get_inputs(self):
        return [SimpleNamespace(name=name, shape=list(shape)) for name, shape in self.shapes.items()]

    def intermediates(self, feeds):
        if self.error is not None:
            raise self.error
        self.asked.append({name: array.shape for name, array in feeds.items()})
        return changed(self._session.intermediates(feeds), self.tensors)

    def run(self, output_names, feeds):
        assert output_names is None
        names = [output.name for output in self._session.get_outputs()]
        return list(changed(dict(zip(names, self._session.run(None, feeds), strict=True)), self.outputs).values())


def changed(arrays, changes):
    """Arrays by name, some of them replaced or left out."""
    left = {name: array for name, array in arrays.items() if changes.get(name, 0) is not None}
    return {name: np.asarray(changes[name](array)) if name in changes else array for name, array in left.items()}


def one_more(array):
    """The array with another number at its end."""
    made = array.copy()
    made.flat[-1] += 1
    return made
