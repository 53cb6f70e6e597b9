"""Whole networks as linger exported them: linger gives what an independent engine computed, bit for bit.

The engine is an x86 build of the executor of two chips, venus and arcs, and shares no code with linger. The files are
copied by `tools/make_golden.py`. Every network is run at batch 1 on all recorded inputs, and every output is compared:
as it was exported, after a repair, in the newer dialect, and converted back from there.
"""

import shutil

import numpy as np
import pytest

from linger import convert_dialect, repair
from linger.errors import LingerError
from linger.graph.core.dialects import NEWER, OLDER, is_node_of
from linger.runtime.reference import Reference
from tests.support.golden import (
    NETS,
    case_names,
    entries,
    file_digests,
    model_path,
    net_mismatches,
    open_session,
    recorded,
)

COUNT = 64
"""Raised whenever tools/make_golden.py finds more; a smaller number means that networks were lost."""

RUNS = 8
"""Inputs recorded for every network."""

REFUSED = {
    "encoder_venus": ["n1.LayerNormInt (LayerNormInt)", "n2.LayerNormInt (LayerNormInt)"],
    "layernorm3_venus": ["1.LayerNormInt (LayerNormInt)"],
    "shuffle_unit_venus": ["sh.ShuffleChannel (ShuffleChannel)"],
}
"""The nodes that the newer dialect has no op for; it has one for every node of the other networks."""

CHANGES_NO_OUTPUT = {"name_nodes", "complete_types"}
"""Rules of repair that find work in these files: branches that share names of nodes, and types that are not declared."""

NETWORKS = case_names(folder=NETS)

every_network = pytest.mark.parametrize("case", NETWORKS)
every_convertible = pytest.mark.parametrize("case", [case for case in NETWORKS if case not in REFUSED])


def converted(case):
    """The network in the newer dialect."""
    return convert_dialect(model_path(case, NETS), NEWER).model


def domains(model):
    """The dialects whose nodes a model holds."""
    return {domain for node in model.graph for domain in (OLDER, NEWER) if is_node_of(node, domain, model)}


@every_network
@pytest.mark.thin(every=2)
def test_numpy_gives_what_the_engine_computed(case):
    assert list(net_mismatches(case, Reference(model_path(case, NETS)).run)) == []


@every_network
@pytest.mark.thin(every=4)
def test_onnxruntime_gives_what_the_engine_computed(case):
    assert list(net_mismatches(case, open_session(model_path(case, NETS)))) == []


@every_network
@pytest.mark.thin(every=4)
def test_repaired_file_gives_what_the_engine_computed(case, tmp_path):
    repaired = repair(shutil.copy(model_path(case, NETS), tmp_path))
    assert list(net_mismatches(case, open_session(repaired.path))) == []


@every_network
def test_repair_finds_nothing_that_would_change_an_output(case):
    repaired = repair(model_path(case, NETS).read_bytes())
    assert {change.rule for change in repaired.changes} <= CHANGES_NO_OUTPUT
    assert repaired.findings == ()


@every_convertible
@pytest.mark.thin(every=4)
def test_newer_dialect_gives_what_the_engine_computed(case):
    model = converted(case)
    assert domains(model) == {NEWER}
    assert list(net_mismatches(case, open_session(model))) == []


@every_convertible
@pytest.mark.thin(every=4)
def test_network_converted_back_gives_what_the_engine_computed(case):
    model = convert_dialect(converted(case), OLDER).model
    assert domains(model) == {OLDER}
    assert list(net_mismatches(case, open_session(model))) == []


@pytest.mark.parametrize("case", REFUSED)
def test_network_without_an_equivalent_is_refused_with_every_node_named(case):
    nodes = REFUSED[case]
    with pytest.raises(
        LingerError, match=rf"^{len(nodes)} of \d+ nodes cannot be written in the domain 'linger'"
    ) as told:
        converted(case)
    assert [node for node in nodes if f"{node}: the domain linger has no such op" not in str(told.value)] == []


@pytest.mark.parametrize("entry", entries(NETS), ids=lambda entry: entry["case"])
def test_files_are_those_the_manifest_describes(entry):
    assert file_digests(entry["case"], NETS) == entry["sha256"]


def test_no_network_has_vanished():
    assert len(NETWORKS) == len(set(NETWORKS)) == COUNT


def test_folder_holds_the_networks_and_nothing_else():
    named = {name for entry in entries(NETS) for name in entry["sha256"]}
    assert {path.name for path in NETS.iterdir()} == named | {"manifest.json"}


def test_both_chips_have_networks():
    assert {entry["chip"] for entry in entries(NETS)} == {"venus", "arcs"}


@pytest.mark.parametrize("entry", entries(NETS), ids=lambda entry: entry["case"])
def test_recorded_outputs_vary_as_the_manifest_says(entry):
    feeds, expected = recorded(entry["case"], NETS)
    assert {len(array) for array in (*feeds.values(), *expected.values())} == {RUNS}
    assert min(len(np.unique(array)) for array in expected.values()) == entry["distinct"] > 1
