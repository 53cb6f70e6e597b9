"""The error tree."""

import pytest

from linger import errors


@pytest.mark.parametrize("name", ["UsageError", "UnsupportedError", "GraphError", "VerificationError"])
def test_every_error_is_a_linger_error(name):
    assert issubclass(getattr(errors, name), errors.LingerError)
    assert name in errors.__doc__


def test_usage_error_is_a_value_error():
    with pytest.raises(ValueError, match="wrong"):
        raise errors.UsageError("wrong")


def test_listing_cuts_and_counts():
    assert errors.listing(str(i) for i in range(5)) == "0, 1, 2, 3, 4"
    assert errors.listing((str(i) for i in range(5)), limit=3) == "0, 1, 2 and 2 more"


def test_a_message_stays_one_line_whatever_a_name_holds():
    assert errors.printable("a\nb\x1b[31m\u2028c") == "a\\nb\\x1b[31m\\u2028c"
    assert errors.printable("conv 1/é/卷积") == "conv 1/é/卷积"


def test_a_package_that_an_extra_brings_is_named_with_it():
    told = errors.missing_extra("linger.init", ModuleNotFoundError("no", name="torch.nn"))
    assert isinstance(told, errors.UsageError)
    assert str(told).startswith("linger.init needs torch, which is not installed.")
    assert "pip install 'linger-nn[torch]'" in str(told)
    other = ModuleNotFoundError("no", name="my_own")
    assert errors.missing_extra("linger.init", other) is other
