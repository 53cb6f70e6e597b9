"""What every input must survive: only our errors, soon; and a repaired model is a model, and stays as it is."""

import time
import zlib

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

import linger
from linger.checks import repair_proto
from linger.checks.repair_rules import RULES
from linger.errors import LingerError
from linger.graph import load
from linger.graph.files.soundness import REPORTABLE, UNREADABLE, flaws, proto_flaws
from linger.graph.formats.propagation import propagate
from linger.graph.passes.well_formed import sort_nodes

SECONDS = 5
"""CPU time for one small input, with the slowness of instrumented code in it."""


def exercise(data: bytes) -> str:
    """Load, look, repair, write, read and repair again; says how far it got.

    Raises:
        AssertionError: A promise is broken.
        Exception: Any error that is not a LingerError escapes.
    """
    start = time.process_time()
    reached = _stages(data)
    spent = time.process_time() - start
    assert spent < SECONDS, f"{spent:.1f} s for {len(data)} bytes"
    return reached


def _stages(data: bytes) -> str:
    _readable_after_repair(data)
    try:
        model = load(data, allowed=REPORTABLE)
    except LingerError as error:
        return _sentence("unreadable", error)
    if hasattr(linger, "check"):
        linger.check(data)
        linger.check(data, "venus")
    try:
        model = load(data)
    except LingerError as error:
        return _sentence("flawed", error)
    linger.memory(data, "venus")
    assert flaws(model) == []
    _propagated(model)
    _one_rule(data)
    try:
        repaired = linger.repair(data)
    except LingerError as error:
        return _sentence("not repaired", error)
    _stays_repaired(repaired)
    if hasattr(linger, "convert_dialect"):
        _converted(repaired.model)
    return "repaired" if repaired.ok else "partly repaired"


def _sentence(reached: str, error: LingerError) -> str:
    """Every refusal is one line that says something."""
    assert len(str(error).splitlines()) == 1, repr(str(error))
    return reached


def _propagated(model: ir.Model) -> None:
    """Following the facts never fails on a sorted model, and changes nothing."""
    before = content(model)
    try:
        propagate(model)
    except LingerError as error:
        _sentence("not followed", error)
    assert content(model) == before


def _readable_after_repair(data: bytes) -> None:
    """What is repaired before it is read as a graph may still be refused, in a sentence."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
        if not any(flaw.category in UNREADABLE for flaw in proto_flaws(proto)):
            repair_proto(proto)
            load(proto)
    except LingerError as error:
        _sentence("not repaired", error)
    except DecodeError:
        return


def _one_rule(data: bytes) -> None:
    """A rule on its own, another one for every input: it leaves a model, and a second time nothing to do.

    Rules require sorted nodes.
    """
    rule = list(RULES.values())[zlib.crc32(data) % len(RULES)]
    model = load(data)
    try:
        sort_nodes(model)
        rule.apply(model)
    except LingerError as error:
        _sentence("no rule", error)
        return
    again = load(content(model), allowed=REPORTABLE)  # inlined, a call that lacks an input leaves a node that does
    assert [f"{rule.name}: {change}" for change in rule.apply(again)] == []


def _stays_repaired(repaired: linger.Repair) -> None:
    written = content(repaired.model)
    again = load(written)  # it must be a model
    second = linger.repair(written)
    assert [str(change) for change in second.changes] == []
    assert content(second.model) == content(again)
    assert [str(f) for f in second.findings] == [str(f) for f in repaired.findings]


def _converted(model: ir.Model) -> None:
    for dialect in ("thinker", "linger"):
        _converted_to(model, dialect)


def _converted_to(model: ir.Model, dialect: str) -> None:
    try:
        made = linger.convert_dialect(model, to=dialect)
    except LingerError as error:
        _sentence("not converted", error)
    else:
        load(content(getattr(made, "model", made)))


def content(model: ir.Model) -> bytes:
    """A model as bytes, the same for the same model."""
    proto: onnx.ModelProto = ir.to_proto(model)
    return proto.SerializeToString(deterministic=True)
