"""What could not be written at the end is refused before the work: folders, opsets."""

import pytest

from linger import UsageError
from tests.support.jobs import QuantizeSettings, require_free

pytestmark = pytest.mark.needs_torch


@pytest.mark.parametrize("force", [False, True])
def test_what_others_wrote_is_in_the_way(force, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("")
    for out, c in ((mine, None), (tmp_path / "out", mine)):
        with pytest.raises(UsageError, match="mine: the folder exists, and its content is not ours to replace"):
            require_free(out, QuantizeSettings(force=force, c=c))
    require_free(tmp_path / "out", QuantizeSettings(force=force, c=tmp_path / "c"))


def test_c_is_not_written_into_the_folder_of_the_run(tmp_path):
    for c in (tmp_path / "out", tmp_path / "out" / "c"):
        with pytest.raises(UsageError, match="C goes into a folder of its own"):
            require_free(tmp_path / "out", QuantizeSettings(c=c))


@pytest.mark.parametrize("opset", range(11, 21))
def test_opsets_of_quantized_files_are_accepted(opset):
    QuantizeSettings(opset=opset).check()


def test_another_opset_is_refused():
    with pytest.raises(UsageError, match=r"opset 10 is not available for a quantized model\. Use 11 to 20\."):
        QuantizeSettings(opset=10).check()
