"""The real function of GroupNormInt is torch's group norm."""

import torch
import torch.nn.functional as F

from tests.support.fast_paths import functional_fast_path
from tests.support.ops import find_op

groupnorm_int = find_op("GroupNormInt")

groupnorm_torch = functional_fast_path(groupnorm_int)


def test_real_function_is_group_norm():
    x, w, b = torch.randn(2, 6, 4, 5), torch.randn(6), torch.randn(6)
    found = groupnorm_torch.real_result([x, w, b], settings={"groups": 3, "eps": 0.1})
    assert torch.equal(found, F.group_norm(x, 3, w, b, 0.1))
    found = groupnorm_torch.real_result([x, w, b], settings={"groups": 6})
    torch.testing.assert_close(found, F.instance_norm(x, weight=w, bias=b))


def test_groups_of_one_number_leave_the_offset():
    x, w, b = torch.randn(2, 6), torch.randn(6), torch.randn(6)
    found = groupnorm_torch.real_result([x, w, b], settings={"groups": 6})
    # the variance is 0, so x·w/√eps + (b − x·w/√eps) is left of it: two products and two sums, each within 2^-24 of its result;
    # some CPUs fuse them and lose nothing
    bound = 2.0**-22 * ((x * w).abs() / groupnorm_int.default("eps") ** 0.5 + b.abs())
    assert ((found - b).abs() <= bound).all()
