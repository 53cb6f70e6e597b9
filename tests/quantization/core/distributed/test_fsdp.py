"""Models that FSDP shards: which of them compute in other types."""

from types import SimpleNamespace

import pytest
import torch

from tests.support.quantization import fsdp

pytestmark = pytest.mark.needs_torch


@pytest.mark.parametrize(
    ("param", "output", "is_other"),
    [(None, None, False), (torch.bfloat16, None, True), (None, torch.bfloat16, True)],
    ids=["neither", "parameters", "outputs"],
)
def test_other_types_of_parameters_or_outputs_are_noticed(param, output, is_other):
    state = SimpleNamespace(_mp_policy=SimpleNamespace(param_dtype=param, output_dtype=output))
    assert fsdp._has_other_types(SimpleNamespace(_get_fsdp_state=lambda: state)) == is_other


def test_a_module_without_such_settings_has_no_other_types():
    assert not fsdp._has_other_types(SimpleNamespace(_get_fsdp_state=SimpleNamespace))
