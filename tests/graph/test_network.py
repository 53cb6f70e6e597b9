"""A network: read and searched once, however much is asked of it, and a file that changed is noticed."""

import os

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import linger
from linger import Session
from linger.checks.memory_use import use_of
from linger.errors import GraphError, UsageError
from linger.graph import Network
from linger.graph.files import model_io
from linger.graph.network import Lifetime, Lifetimes

TEXT = """<ir_version: 8, opset_import: ["": 13, "thinker": 1]>
net (float[n, 4] x) => (float[n, 4] y) {
    q = thinker.Quant <data_bits: int = 8, scale_x: float = 16.0> (x)
    s = thinker.iqAdd <scale_x: float = 16.0, scale_y: float = 16.0, scale_o: float = 8.0> (q, q)
    y = thinker.Dequant <scale_o: float = 8.0> (s)
}"""
FLAWED = TEXT.replace("(q, q)", "(q, gone)")


@pytest.fixture
def file(tmp_path):
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@pytest.fixture
def reads(monkeypatch):
    """The paths that are read, in order."""
    found, read = [], model_io._content
    monkeypatch.setattr(model_io, "_content", lambda path: found.append(path) or read(path))
    return found


def test_all_commands_read_a_network_once(file, reads, tmp_path):
    network = Network(file)
    assert linger.check(network).ok
    assert linger.memory(network).peak_bytes == linger.memory(network, "venus").peak_bytes
    assert linger.verify(None, network, certificate=tmp_path / "c.json").ok
    assert linger.c.memory(network).arena_bytes == linger.c.memory(file).arena_bytes
    linger.c.export(network, tmp_path / "c", certificate=tmp_path / "c.json")
    assert linger.report(network, None, verification=tmp_path / "c.json").runs[0].proof.is_exact
    assert reads.count(file) == 2, "the network, and once for the path"


@pytest.mark.parametrize("command", [linger.check, linger.memory, linger.c.memory])
def test_results_are_those_of_the_path(command, file):
    assert command(Network(file)).to_json() == command(file).to_json()


def test_a_function_runs_once_for_each_network(file):
    calls = []
    network = Network(file)
    assert network.once(calls.append) is network.once(calls.append) is None
    assert calls == [network]
    assert network.once(use_of) is network.once(use_of)
    assert Network.of(network) is network
    assert network.normal is network.normal
    assert network.own() is not network.own()


def test_the_normal_form_leaves_the_model(file):
    network = Network(file)
    before = ir.to_proto(network.model).SerializeToString()
    Session(network).run(None, {"x": np.zeros((1, 4), np.float32)})
    assert network.sized
    assert network.formats
    assert ir.to_proto(network.model).SerializeToString() == before


def test_a_change_of_the_file_is_noticed(file, tmp_path):
    network = Network(file)
    result = linger.verify(None, network)
    network.require_unchanged()
    os.utime(file, ns=(0, 0))
    with pytest.raises(UsageError, match=r"net\.onnx: the file has changed since it was loaded\. Load it again\."):
        network.require_unchanged()
    with pytest.raises(UsageError, match="has changed since it was loaded"):
        linger.c.export(network, tmp_path / "c")
    with pytest.raises(UsageError, match="has changed since it was verified"):
        result.save_certificate(tmp_path / "c.json")
    linger.c.export(file, tmp_path / "c")


def test_flaws_that_a_check_lists_are_refused_by_all_others(tmp_path, reads):
    onnx.save(onnx.parser.parse_model(FLAWED), tmp_path / "bad.onnx")
    network = Network(tmp_path / "bad.onnx")
    assert not linger.check(network).ok
    for command in (linger.memory, linger.c.memory, Session):
        with pytest.raises(GraphError, match="no node makes 'gone'"):
            command(network)
    assert len(reads) == 1
    with pytest.raises(GraphError, match="no node makes 'gone'"):
        linger.memory(tmp_path / "bad.onnx")


def test_a_model_in_memory_has_no_files(file):
    model = Network(file).model
    network = Network(model)
    assert network.path is None
    assert network.files == {}
    network.require_unchanged()
    with pytest.raises(UsageError, match="a certificate is about a file"):
        linger.verify(None, network, certificate=file.parent / "c.json")
    with pytest.raises(UsageError, match="a report is about a file"):
        linger.report(network, None)


def test_lifetimes_count_aligned_bytes_and_unknown_sizes():
    pieces = [Lifetime("a", 5, 0, 1), Lifetime("b", None, 1, 2), Lifetime("c", 16, 2, 2)]
    assert Lifetimes(pieces).totals() == [5, 5, 16]
    assert Lifetimes(pieces, 16).totals() == [16, 16, 16]
    assert Lifetimes(pieces).unknown() == [0, 1, 1]
    assert Lifetimes(pieces).alive_at(1) == tuple(pieces[:2])
    assert pieces[0].meets(pieces[1])
    assert not pieces[0].meets(pieces[2])
    assert Lifetimes([]).totals() == []
