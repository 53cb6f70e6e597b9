"""Findings read as sentences."""

from linger.graph.core.nodes import Finding


def test_a_finding_is_two_sentences():
    assert str(Finding("error", "a (Conv)", "it is wrong", "Mend it.")) == "a (Conv): it is wrong. Mend it."
    assert str(Finding("error", "", "it is wrong", "Mend it.")) == "it is wrong. Mend it."
