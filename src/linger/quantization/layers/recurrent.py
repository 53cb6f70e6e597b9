# SPDX-License-Identifier: Apache-2.0
"""A quantized LSTM or GRU, or a cell of one: one node per layer and direction, its parameters and keys those of torch.

Both directions of a layer share the scale of their output, so joining them moves nothing. The range of the output is
that of the whole sequence, not of each step; the first pass takes the coarsest scale that can be needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from linger.analysis.multiplications import products_of
from linger.constraint.limits import Limits, Widths, clamp
from linger.dialect import Op, find_op
from linger.errors import UsageError
from linger.numeric.fixed import BIAS_BITS, limits
from linger.numeric.torch.gates import Formats, Weights
from linger.numeric.torch.quantize import (
    Scale,
    base_of,
    exponents_of,
    fake_quantize,
    finest_of,
    largest_magnitude,
    largest_of,
    scale_for_range,
    smallest,
)
from linger.ops.fast.fast_path import recurrent_fast_path
from linger.quantization.core.packing import pack, unpack
from linger.quantization.core.qtensor import QTensor, signed, to_carrier, unwrap
from linger.quantization.core.quantized import HasWidths, Watchman, add_widths, integer_bound, kept
from linger.quantization.core.ranges import NOMINAL, Range
from linger.quantization.core.runtime import OpCall, OpRecord, Pass, Runtime
from linger.quantization.functions.dispatch import drop
from linger.quantization.layers.recurrent_operands import (
    ROLES,
    RoundedWeights,
    Sequences,
    at_end,
    check_shapes,
    each,
    full_lengths,
    have_one_scale,
    joining,
    ordered,
    range_suffix,
    round_parameters,
    run_real,
    within,
)

CELL_SCALE, CELL_BITS = 128.0, 16
_RANGES = ("i", "h", "iw", "hw", "io", "ho", "o")
_GATE_SCALE = 2.0**11


States = Tensor | tuple[Tensor, ...]
"""h of a GRU, or h and c of an LSTM."""


class _LayerResult(NamedTuple):
    """One layer's output and last states: h [directions, batch, hidden] in the carrier of the output, real h and c."""

    out: QTensor
    h: Tensor
    real_h: Tensor | None
    c: Tensor | None


class QuantRecurrent(HasWidths):
    """nn.LSTM or nn.GRU with all gates in fixed point, in training too: only the gradient is real."""

    is_layer = True
    suffixes: tuple[tuple[str, ...], ...]

    def __init__(self, op: Op, source: Any, widths: Widths, runtime: Runtime) -> None:
        # a cell is one layer of one direction, whose parameters have no suffix
        layers, is_both = getattr(source, "num_layers", 1), getattr(source, "bidirectional", False)
        backs = range(1 + bool(is_both))
        ranges = [range_suffix(layer, back) for layer in range(layers) for back in backs]
        super().__init__(tuple(f"{name}{end}" for end in ranges for name in _RANGES))
        add_widths(self)
        self.op_name, self._op = op.name, op
        self.bidirectional, self.batch_first = is_both, getattr(source, "batch_first", False)
        self.dropout, self.suffixes = getattr(source, "dropout", 0.0), (("",),)
        if hasattr(source, "num_layers"):
            ends = ("", "_reverse")[: len(backs)]
            self.suffixes = tuple(tuple(f"_l{layer}{end}" for end in ends) for layer in range(layers))
        self.widths, self.runtime = widths, runtime
        self.limited_to, self.is_ahead_of_relu, self.is_lookup = Limits(), False, False
        self.input_size, self.hidden_size = source.input_size, source.hidden_size
        self.bias, self.num_layers = bool(source.bias), layers
        self._rounded: dict[tuple[Any, ...], RoundedWeights] = {}
        self._watchman = Watchman()
        for name, parameter in source.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        if runtime.is_per_channel:
            self._split_rows()
        self.train(source.training)

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle leaves out what can be computed again."""
        return self.__dict__ | {"_rounded": {}, "_watchman": Watchman()}

    @property
    def lacks_scale(self) -> bool:
        """Whether a range was never seen."""
        return any(self._range(name, k).running.read() == 0.0 for k in range(self.num_layers) for name in "io")

    def _split_rows(self) -> None:
        """Give each row of the matrices, as many as all gates have numbers, a scale of its own."""
        rows = len(self._parameter("weight_hh", 0, 0))
        for range_ in self.ranges.values():
            if range_.is_of_weights:
                range_.split(rows, None)

    def _range(self, name: str, layer: int, back: int = 0) -> Range:
        return self.ranges[name + range_suffix(layer, back)]

    def extra_repr(self) -> str:
        """The op, its sizes and widths."""
        widths = f"{self.widths} bits"
        return f"{self.op_name}, {self.input_size} → {self.hidden_size}, {self.num_layers} layers, {widths}"

    # forward
    def forward(self, input: Tensor | PackedSequence, hx: States | None = None) -> Any:  # noqa: A002 - torch's name, as a caller may write it
        """What the torch layer returns: the output sequence and the last states, packed where the input is."""
        if isinstance(input, PackedSequence):
            x, lengths = unpack(input)
            states = None if hx is None else each(hx, lambda s: ordered(s, input.sorted_indices))
            out, last = self.run_layers(x, lengths, states, is_batch_first=False)
            return pack(out, lengths, input), each(last, lambda s: ordered(s, input.unsorted_indices))
        if input.dim() == 2:
            axis = 0 if self.batch_first else 1
            states = None if hx is None else each(hx, lambda s: s.unsqueeze(1))
            out, last = self.run_layers(input.unsqueeze(axis), None, states, is_batch_first=self.batch_first)
            return out.squeeze(axis), each(last, lambda s: s.squeeze(1))
        return self.run_layers(input, None, hx, is_batch_first=self.batch_first)

    def run_layers(
        self, x: Tensor, lengths: Tensor | None, hx: States | None, *, is_batch_first: bool
    ) -> tuple[QTensor, States]:
        """All layers: the last one's output, and the states as torch returns them."""
        initial, count = (hx,) if isinstance(hx, Tensor) else hx, len(self.suffixes[0])
        if not self.runtime.now.is_traced:  # the pass before an export has checked them
            sizes = (self.input_size, self.num_layers * count, self.hidden_size)
            names = self._op.outputs[1:]
            check_shapes(self.path, x, initial, sizes=sizes, is_batch_first=is_batch_first, state_names=names)
        results: list[_LayerResult] = []
        for layer in range(self.num_layers):
            if results and self.training and self.dropout:
                x = drop(F.dropout, results[-1].out, (self.dropout, True), {})
            sequences, states = Sequences(self._quantized(x, layer), lengths, is_batch_first), initial
            if initial is not None and self.num_layers > 1:
                states = tuple(s[layer * count : (layer + 1) * count] for s in initial)
            results.append(self._run_layer(layer, sequences, states))
            x = results[-1].out
        return results[-1].out, self._joined_states(results)

    def _quantized(self, x: Tensor, layer: int) -> QTensor:
        range_, runtime, now = self._range("i", layer), self.runtime, self.runtime.now
        is_observed = range_.observes(now)
        if isinstance(x, QTensor) and (x.scale if is_observed else x.scale_on_host) is not None:
            q = range_.requantize(signed(x), self.widths.data, runtime, self.path)
            is_stale = layer == 0 and self.input_range == "stale"
            if not now.is_traced and (is_observed or is_stale or range_.is_foreign):
                self.input_range = "adopted" if layer == 0 else self.input_range
                range_.adopt(q)
            return q
        if is_observed:
            self.input_range = "own"
        return range_.quantize(unwrap(x), self.widths.data, runtime, self.path)

    @staticmethod
    def _joined_states(results: Sequence[_LayerResult]) -> States:
        """h as integers where all layers have one scale, with the real values that a file has already; else real. c is real."""
        cells = [result.c for result in results if result.c is not None]
        if have_one_scale([result.out for result in results]):
            integers = results[0].out.like(_joined([result.h for result in results]))
            if results[0].real_h is not None:
                integers.preset_real(_joined([cast(Tensor, result.real_h) for result in results]))
            h: Tensor = integers
        else:
            h = torch.cat([result.out.like(result.h).dequantize() for result in results])
        return (h, _joined(cells)) if cells else h

    # one layer
    def _run_layer(self, layer: int, sequences: Sequences, states: tuple[Tensor, ...] | None) -> _LayerResult:
        q = sequences.x
        assert q.scale is not None
        calls = [self.runtime.begin(self._op, self.path) for _ in self.suffixes[layer]]
        now = calls[0].now
        if now.is_real:
            return self._run_real(layer, sequences, states, calls)
        scale_h = self._output_scale(self._range("o", layer), calls[0])
        rounded = self.rounded_weights(layer, q.scale, scale_h, now)
        self._note(layer, sequences)
        nodes = self._nodes(layer, sequences, scale_h, rounded)
        if calls[0].is_written:
            return self._emit(layer, sequences, states, rounded, calls, [attributes() for attributes in nodes])
        result = self._simulate(layer, sequences, states, rounded, scale_h, now)
        self._record(sequences, result.out, calls, nodes)
        return result

    def _run_real(
        self, layer: int, sequences: Sequences, states: tuple[Tensor, ...] | None, calls: Sequence[OpCall]
    ) -> _LayerResult:
        """The layer in real numbers, by torch; where ranges are learned, those of the output and of the weights.

        The output sequence widens its range, and so does the initial state, which has the same scale.
        """
        q, bits, now = sequences.x, self.widths.output, calls[0].now
        limit_bits = BIAS_BITS if now.has_float_limits else self.widths.parameter
        starts = None if states is None else [unwrap(s).float() for s in states]
        real, h, *c = run_real(self._op, sequences, starts, self._directions(layer, limit_bits))
        real, scale = clamp(real, self.limited_to.output), NOMINAL
        nodes: Sequence[Callable[[], dict[str, Any]]] = [dict] * len(calls)
        self._note(layer, sequences)
        output, where = self._range("o", layer), f"{self.path}.{self.op_name}"
        if output.observes(now):
            limit: Scale = self._largest_output
            if starts is not None:
                limit = largest_of([limit, largest_magnitude(starts[0])])
                output.observe(starts[0], where, now)
            output.observe(torch.clamp(real, -limit, limit), where, now)
            self._follow_output(layer, now)
            scale = output.value(now, output.stored_scale)
            nodes = self._nodes(layer, sequences, scale, self.rounded_weights(layer, q.scale, scale, now))
        out = QTensor(to_carrier(real, bits), scale, bits, self.runtime)
        self._record(sequences, out, calls, nodes)
        return _LayerResult(out, to_carrier(h, bits), None, c[0] if c else None)

    def _output_scale(self, range_: Range, call: OpCall) -> Scale:
        """The scale of the range so far; in a first pass the coarsest one that can be needed."""
        bits = self.widths.output
        running = range_.value(call.now)
        if isinstance(running, Tensor):
            return scale_for_range(running.masked_fill(running == 0.0, self._largest_output), bits)
        if range_.observes(call.now) and running == 0.0:
            return scale_for_range(self._largest_output, bits)
        return range_.scale_at(bits, call.name, call.now)

    @property
    def _largest_output(self) -> float:
        """No |h| is larger than 1; one step of a symmetric format less, because −1 has a place in it and 1 is not reached."""
        bits = self.widths.output
        own = limits(bits)[1] / 2.0 ** (bits - 1)
        bound = integer_bound(self.limited_to.output, bits)
        return own if bound is None else min(own, bound)

    def _simulate(
        self,
        layer: int,
        sequences: Sequences,
        states: tuple[Tensor, ...] | None,
        rounded: RoundedWeights,
        scale_h: Scale,
        now: Pass,
    ) -> _LayerResult:
        q, widths, bits = sequences.x, self.widths, self.widths.output
        of_input, of_state = (tuple(map(finest_of, scales)) for scales in (rounded.scale_iw, rounded.scale_hw))
        formats = Formats(q.scale, scale_h, of_input, of_state, widths.data, widths.parameter, bits)
        starts = self._starts(states, scale_h)
        x = sequences.turned(q.content)
        # NaN has no place in the table of a gate; what is on a device is not looked at and becomes NaN there
        if any(t is not None and t.is_cpu and math.isnan(float(t.detach().sum())) for t in (x, *starts)):
            raise UsageError(
                f"{self.path}: the input or the state holds NaN, which has no integer. Check what comes before the layer."
            )
        plan, output = rounded.plan(self._op, formats), self._range("o", layer)
        wants_reach = output.observes(now) and not output.holds(now)
        result = recurrent_fast_path(self._op).run(
            x, sequences.lengths, *starts, *rounded.weights, formats, wants_reach=wants_reach, known=plan
        )
        if wants_reach:
            reach = smallest([result.reach, self._largest_output])
            reach = reach if states is None else largest_of([reach, largest_magnitude(unwrap(states[0]))])
            output.widen(reach, f"{self.path}.{self.op_name}", now)
        if output.observes(now):
            self._follow_output(layer, now)
        out = QTensor(sequences.turned(result.out), scale_h, bits, self.runtime)
        return _LayerResult(out, result.h, None, getattr(result, "c", None))

    def _starts(self, states: tuple[Tensor, ...] | None, scale_h: Scale) -> tuple[Tensor | None, ...]:
        """Initial states on their grids; h first, then c."""
        formats = ((scale_h, self.widths.output), (CELL_SCALE, CELL_BITS))[: len(self._op.outputs) - 1]
        if states is None:
            return (None,) * len(formats)
        reals = [unwrap(s).float() for s in states]
        return tuple(fake_quantize(s, scale, bits) for s, (scale, bits) in zip(reals, formats, strict=True))

    def _follow_output(self, layer: int, now: Pass) -> None:
        """Find the scale of the output's range, and what follows from it."""
        range_ = self._range("o", layer)
        range_.scale_at(self.widths.output, f"{self.path}.{self.op_name}", now)
        self.follow_range(range_.name, now)

    def follow_range(self, name: str, now: Pass | None = None) -> None:
        """Write the ranges of a layer that follow from that of its output: the state's, the gates', the other direction's."""
        layer = next((k for k in range(self.num_layers) if name == f"o{range_suffix(k, 0)}"), None)
        if layer is None:
            return
        now = Pass.here() if now is None else now
        ranges = (self._range("o", layer), self._range("i", layer))
        output, data = ((r.value(now), r.value(now, r.stored_scale)) for r in ranges)
        gates = limits(16)[1] / _GATE_SCALE, _GATE_SCALE  # always in Q11, with 16 bits
        wider = self.widths.data - self.widths.output
        for back in range(len(self.suffixes[layer])):
            for kind, numbers in {"o": output, "h": output, "io": gates, "ho": gates, "i": data}.items():
                self._range(kind, layer, back).set(*numbers)
            # the input of the next layer, where that is as wide as the output before it, or wider
            if layer + 1 < self.num_layers and wider >= 0:
                next_scale = output[1] * 2.0**wider
                self._range("i", layer + 1, back).set(limits(self.widths.data)[1] / next_scale, next_scale)

    def _record(
        self, sequences: Sequences, out: QTensor, calls: Sequence[OpCall], nodes: Sequence[Callable[[], dict[str, Any]]]
    ) -> None:
        """Each direction as its node, whose attributes are made only here, gives it, then both joined."""
        if not self.runtime.is_recorded and len(calls) == 1:
            return
        parts = [out.like(part) for part in out.content.chunk(len(calls), dim=-1)]
        for part, call, attributes in zip(parts, calls, nodes, strict=True):
            call.record(part, [sequences.x], attributes())
        if len(calls) > 1:
            self.runtime.begin(find_op("iqCat"), self.path).record(out, parts, joining(parts))

    # parameters
    def _parameter(self, name: str, layer: int, back: int) -> Tensor:
        return cast(Tensor, getattr(self, name + self.suffixes[layer][back]))

    def rounded_weights(self, layer: int, scale_i: Scale, scale_h: Scale, now: Pass | None = None) -> RoundedWeights:
        """Rounded anew while they learn, else kept until one changes."""
        now = self.runtime.now if now is None else now
        # torch's own way asks for submodules; there are some where a parameter is computed from others
        own = list(self.parameters()) if self._modules else [p for p in self._parameters.values() if p is not None]
        if not now.is_traced:
            if torch.is_grad_enabled() and any(p.requires_grad for p in own):
                return self._round(layer, scale_i, scale_h, now)
            self._forget_if_changed(own, now)
        key = (layer, scale_i, scale_h, self.widths, self._chosen_numbers(layer))
        if key not in self._rounded:
            with kept():
                self._rounded[key] = self._round(layer, scale_i, scale_h, now)
        return self._rounded[key]

    def _forget_if_changed(self, parameters: Sequence[Tensor], now: Pass) -> None:
        """Drop what was rounded when a parameter has changed; a look for changes would stall a device that learns."""
        is_there = not parameters[0].is_cpu and (self.training or now.calibration is not None)
        if is_there or self._watchman.has_changed(parameters, is_thorough=self.runtime.is_thorough):
            self._rounded.clear()

    def _round(self, layer: int, scale_i: Scale, scale_h: Scale, now: Pass) -> RoundedWeights:
        bits = self.widths.parameter
        parts, chosen = self._directions(layer, bits), self._chosen_ranges(layer, now)
        stays_there = self.training or now.calibration is not None
        rows = self._range("iw", layer).rows
        how: dict[str, Any] = {"stays_there": stays_there, "rows": rows}
        rounded = round_parameters(parts, scale_i, scale_h, bits, self.path, chosen, **how)
        for back, part in enumerate(parts):
            of_input = ("iw", rounded.weights.w_ih, part.w_ih, rounded.scale_iw[back], rounded.largest[back][0])
            of_state = ("hw", rounded.weights.w_hh, part.w_hh, rounded.scale_hw[back], rounded.largest[back][1])
            for name, weight, real, scale, largest in (of_input, of_state):
                range_ = self._range(name, layer, back)
                range_.learn(weight, real, scale, bits, now, part=back)  # in place
                range_.set(-base_of(-largest), scale)
                range_.width = bits
        return rounded

    def _directions(self, layer: int, bits: int) -> list[Weights]:
        """The real parameters of one layer within the limits that integers of this width keep."""
        parts = []
        for back in range(len(self.suffixes[layer])):
            weights = [self._parameter(name, layer, back) for name in ("weight_ih", "weight_hh")]
            biases = [self._parameter(n, layer, back) if self.bias else None for n in ("bias_ih", "bias_hh")]
            parts.append(within(self.limited_to, bits, weights[0], weights[1], *biases))
        return parts

    def range_weights(self) -> dict[str, Tensor]:
        """The weights within their limits, by the names of their ranges."""
        weights: dict[str, Tensor] = {}
        with torch.no_grad():
            for layer in range(self.num_layers):
                for back, part in enumerate(self._directions(layer, self.widths.parameter)):
                    end = range_suffix(layer, back)
                    weights |= {f"iw{end}": part.w_ih, f"hw{end}": part.w_hh}
        return weights

    def _chosen_numbers(self, layer: int) -> tuple[Any, ...]:
        """`_chosen_ranges` in numbers that can be compared."""
        backs = range(len(self.suffixes[layer]))
        return tuple(self._range(name, layer, back).chosen_range() for back in backs for name in ("iw", "hw"))

    def _chosen_ranges(self, layer: int, now: Pass) -> tuple[tuple[Scale | None, Scale | None], ...]:
        """Of each direction, the ranges that its weights of the input and of the state are rounded for."""
        return tuple(
            (self._range("iw", layer, back).chosen_value(now), self._range("hw", layer, back).chosen_value(now))
            for back in range(len(self.suffixes[layer]))
        )

    def _nodes(
        self, layer: int, sequences: Sequences, scale_h: Scale, rounded: RoundedWeights
    ) -> list[Callable[[], dict[str, Any]]]:
        """Of each direction, what gives the attributes of its node."""
        directions = range(len(self.suffixes[layer]))
        return [partial(self._attributes, layer, back, sequences, scale_h, rounded) for back in directions]

    def _attributes(
        self, layer: int, back: int, sequences: Sequences, scale_h: Scale, rounded: RoundedWeights
    ) -> dict[str, Any]:
        scales = {"iw": rounded.scale_iw[back], "hw": rounded.scale_hw[back]}
        exponents = {name: exponents_of(scale) for name, scale in scales.items()}
        return {
            "input_size": int(self._parameter("weight_ih", layer, back).shape[1]),
            "hidden_size": self.hidden_size,
            "num_layers": 1,
            "batch_first": int(sequences.is_batch_first),
            "go_forward": 1 - back,
            "dropout": 0.0,
            "scale_i": sequences.x.scale,
            "scale_h": scale_h,
            "scale_iw": base_of(rounded.scale_iw[back]),
            "scale_hw": base_of(rounded.scale_hw[back]),
            **{f"exponents_{name}": of for name, of in exponents.items() if of},
            "scale_o": scale_h,
            "data_bits": self.widths.data,
            "parameter_bits": self.widths.parameter,
            "o_bits": self.widths.output,
        }

    def _note(self, layer: int, sequences: Sequences) -> None:
        macs = 0
        if not self.runtime.now.is_traced:
            weights = (self._parameter(n, layer, 0).shape for n in ("weight_ih", "weight_hh"))
            macs = (products_of("LSTM", [None, sequences.x.content.shape, *weights]) or 0) * len(self.suffixes[layer])
        self.runtime.note(OpRecord(self.path, self.op_name, is_integer=True, macs=macs))

    # export
    def _emit(
        self,
        layer: int,
        sequences: Sequences,
        states: tuple[Tensor, ...] | None,
        rounded: RoundedWeights,
        calls: Sequence[OpCall],
        attributes: Sequence[Mapping[str, Any]],
    ) -> _LayerResult:
        with_lengths = sequences
        if sequences.lengths is None and states is not None:
            # the file's form with states has lengths, too
            with_lengths = replace(sequences, lengths=full_lengths(sequences))
        outputs = [
            self._emit_direction(layer, back, with_lengths, states, rounded, call, own)
            for back, (call, own) in enumerate(zip(calls, attributes, strict=True))
        ]
        scale, bits = attributes[0]["scale_o"], self.widths.output
        parts = [QTensor(output[0], scale, bits, self.runtime) for output in outputs]
        out = parts[0]
        if len(parts) > 1:  # both directions side by side
            content = self.runtime.begin(find_op("iqCat"), self.path).emit([p.content for p in parts], joining(parts))
            out = QTensor(content, scale, bits, self.runtime)
        h = torch.stack([at_end(p.content, sequences, back) for back, p in enumerate(parts)])
        reals = [_joined([output[i] for output in outputs]) for i in range(1, len(outputs[0]))]
        return _LayerResult(out, h, reals[0], reals[1] if len(reals) > 1 else None)

    def _emit_direction(
        self,
        layer: int,
        back: int,
        sequences: Sequences,
        states: tuple[Tensor, ...] | None,
        rounded: RoundedWeights,
        call: OpCall,
        attributes: Mapping[str, Any],
    ) -> tuple[Tensor, ...]:
        """The node of one direction: output sequence and last states."""
        emitter, suffixes = self.runtime.emitter, self.suffixes[layer]
        assert emitter is not None  # checked by the caller
        weights = rounded.integers(back, attributes["scale_i"], attributes["scale_h"], self.widths.parameter)
        starts = [unwrap(s) if len(suffixes) == 1 else unwrap(s)[back : back + 1] for s in states or ()]
        lengths = [] if sequences.lengths is None else [sequences.lengths]
        keys = {role: role.replace("w_", "weight_").replace("b_", "bias_") + suffixes[back] for role in ROLES}
        data = [sequences.x.content, *lengths, *starts]
        outputs = emitter.call(self._op, [*data, *weights.values()], attributes, call.name, keys)
        return cast(tuple[Tensor, ...], outputs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self._rounded.clear()
        self._watchman.forget()
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def train(self, mode: bool = True) -> QuantRecurrent:  # noqa: FBT001, FBT002 - torch's signature
        """Switch the mode; what was rounded is made anew."""
        if mode != self.training:
            self._watchman.forget()
        self.follow_widths()
        return super().train(mode)

    def flatten_parameters(self) -> None:
        """Do nothing: torch's layer has this method, and callers may use it."""


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(tensors)) if len(tensors) > 1 else tensors[0]


class QuantCell(QuantRecurrent):
    """One step: what it returns is the state of the next call, without loss."""

    def forward(self, input: Tensor, hx: States | None = None) -> States:  # type: ignore[override]  # noqa: A002 - torch's name
        """The new state: h, or h and c."""
        if input.dim() == 1:  # without a batch
            states = None if hx is None else each(hx, lambda s: s.unsqueeze(0))
            return each(self.forward(input.unsqueeze(0), states), lambda s: s.squeeze(0))
        states = None if hx is None else each(hx, lambda s: unwrap(s).unsqueeze(0))
        out, last = self.run_layers(input.unsqueeze(0), None, states, is_batch_first=False)
        real = last[0] if isinstance(last, tuple) else last
        h = out.like(out.content.squeeze(0))
        if isinstance(real, QTensor) and real.is_integer:
            h.preset_real(real.dequantize().squeeze(0))
        return (h, last[1].squeeze(0)) if isinstance(last, tuple) else h
