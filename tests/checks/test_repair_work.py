"""The work of a repair grows with the nodes, no faster: calls of functions are counted, not seconds."""

import os
import sys
from functools import partial
from pathlib import Path

import onnx
import pytest

import linger
from linger import repair

PREFIX = f"{Path(linger.__file__).parent}{os.sep}"

# an Identity, a missing Dequant before Tanh, one at a wrong scale, two of one tensor, one where integers are needed
BLOCK = """
    m{i} = Relu(b{i})
    k{i} = Identity(m{i})
    s{i} = thinker.iqAdd <scale_x: float = 16.0, scale_y: float = 16.0, scale_o: float = 16.0> (k{i}, b{i})
    d{i} = thinker.Dequant <scale_o: float = 8.0> (s{i})
    e{i} = thinker.Dequant <scale_o: float = 16.0> (s{i})
    t{i} = Tanh(s{i})
    g{i} = Sigmoid(e{i})
    a{i} = Add(t{i}, g{i})
    q{i} = thinker.Quant <data_bits: int = 8, scale_x: float = 16.0> (a{i})
    r{i} = Relu(d{i})
    b{j} = thinker.iqAdd <scale_x: float = 16.0, scale_y: float = 16.0, scale_o: float = 16.0> (q{i}, r{i})
"""
NODES_PER_BLOCK = 11


def damaged(blocks):
    """A file of that many blocks, its nodes in the opposite order."""
    body = "".join(BLOCK.format(i=i, j=i + 1) for i in range(blocks))
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 13, "thinker": 1]>
        net (float[1,8] x) => (float[1,8] b{blocks}) {{
            b0 = thinker.Quant <data_bits: int = 8, scale_x: float = 16.0> (x)
            {body}
        }}""")
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def calls(action):
    """How many calls of functions and resumptions of generators of linger an action takes."""
    count = 0

    def profile(frame, event, _):
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(PREFIX)

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


@pytest.fixture(scope="module")
def work():
    """The calls of a repair by the number of blocks."""
    repair(damaged(2))  # ops are registered and schemas read once
    files = {blocks: damaged(blocks) for blocks in (30, 60)}
    return {blocks: calls(partial(repair, proto)) for blocks, proto in files.items()}


def test_twice_the_nodes_are_twice_the_work(work):
    assert work[60] <= 2.1 * work[30]


def test_the_work_per_node_stays_small(work):
    # 354 calls now, 643 before walks were shared; a rule that walks through the model once more takes at least two
    assert (work[60] - work[30]) / (30 * NODES_PER_BLOCK) <= 370


def test_what_is_repaired_is_sound_and_stays_so():
    made = repair(damaged(3))
    assert made.ok
    assert len(made.changes) > 3 * 4
    assert not repair(made.model).changes


def test_the_facts_of_a_sound_model_are_found_once(monkeypatch):
    found = []
    seen = linger.graph.formats.propagation.required_integers
    monkeypatch.setattr(
        "linger.graph.formats.propagation.required_integers", lambda flow: found.append(flow) or seen(flow)
    )
    sound = repair(damaged(2)).model
    found.clear()
    assert not repair(sound).changes
    assert len(found) == 1
