"""Code written from the documents runs here: every Python block of the five, as printed there.

The documents are other people's; their text is read when the tests run and known here by its fingerprint alone.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from torch import nn
from torch.onnx import register_custom_op_symbolic, symbolic_helper, unregister_custom_op_symbolic
from torch.onnx._internal.torchscript_exporter import jit_utils
from torch.onnx.symbolic_opset9 import reshape

import linger
from tests.seeds import checks, preludes
from tests.seeds.stage import Stage
from tests.support.seed_blocks import Block, find_blocks, read_blocks

AS_PRINTED = "run as printed"
COMPLETED = "completed"
NOT_CODE = "not code"

COUNTS = {
    "000": {AS_PRINTED: 2, COMPLETED: 10, NOT_CODE: 4},
    "001": {COMPLETED: 5, NOT_CODE: 2},
    "002": {AS_PRINTED: 2, COMPLETED: 5, NOT_CODE: 2},
    "003": {COMPLETED: 3, NOT_CODE: 1},
    "004": {COMPLETED: 11, NOT_CODE: 1},
}


@dataclass(frozen=True)
class Case:
    """One block: where it stands, its fingerprint, its class and why, what it needs, what must hold afterwards."""

    document: str
    index: int
    digest: str
    kind: str
    reason: str
    prelude: Callable[[Stage], None] = preludes.nothing
    check: Callable[[Stage], None] = checks.nothing

    def __str__(self) -> str:
        return f"{self.document}-{self.index}"


LOG = "a string: the printed log of an analysis"
CASES = (
    Case("000", 0, "04dea48e", COMPLETED, "the four names that it passes", preludes.whole_signature, checks.export_at_default_opset),
    Case("000", 1, "6befb358", COMPLETED, "the class of the model", preludes.model_class, checks.simple_export),
    Case("000", 2, "d4250ec0", NOT_CODE, "a row of dots stands for other lines", check=checks.init_redirects),
    Case("000", 3, "65345e89", COMPLETED, "the model and its input", preludes.model_with_batches, checks.open_batch),
    Case("000", 4, "0e1932a5", AS_PRINTED, "a dict, then used for an export", check=checks.open_axes),
    Case("000", 5, "90ec0de1", NOT_CODE, "the outer brace is never closed", check=checks.open_named_axes),
    Case("000", 6, "040b8c6f", AS_PRINTED, "a dict, then used for an export", check=checks.open_axes),
    Case("000", 7, "23dd7078", COMPLETED, "the model it leaves blank", preludes.blank_model, checks.named_at_opset_11),
    Case("000", 8, "66095e04", COMPLETED, "the model it leaves blank", preludes.blank_model, checks.named_at_opset_11),
    Case("000", 9, "8559b0e1", COMPLETED, "imports, its checkpoint file", preludes.checkpoint_files, checks.log_at_the_given_place),
    Case("000", 10, "3d9c926e", COMPLETED, "imports, its checkpoint file", preludes.checkpoint_files, checks.log_at_the_default_place),
    Case("000", 11, "488b4f33", NOT_CODE, LOG),
    Case("000", 12, "2b4e7876", COMPLETED, "imports, ResNet-50, a card", preludes.network_on_a_card, checks.log_of_layer_outputs),
    Case("000", 13, "a7211c06", NOT_CODE, LOG),
    Case("000", 14, "43ad176d", COMPLETED, "the quantized model", preludes.quantized_net, checks.debug_file),
    Case("000", 15, "81f42990", COMPLETED, "imports, its wrong file", preludes.wrong_file, checks.mended_file),
    Case("001", 0, "8559b0e1", COMPLETED, "imports, its checkpoint file", preludes.checkpoint_files, checks.log_at_the_given_place),
    Case("001", 1, "3d9c926e", COMPLETED, "imports, its checkpoint file", preludes.checkpoint_files, checks.log_at_the_default_place),
    Case("001", 2, "488b4f33", NOT_CODE, LOG),
    Case("001", 3, "2b4e7876", COMPLETED, "imports, ResNet-50, a card", preludes.network_on_a_card, checks.log_of_layer_outputs),
    Case("001", 4, "a7211c06", NOT_CODE, LOG),
    Case("001", 5, "43ad176d", COMPLETED, "the quantized model", preludes.quantized_net, checks.debug_file),
    Case("001", 6, "81f42990", COMPLETED, "imports, its wrong file", preludes.wrong_file, checks.mended_file),
    Case("002", 0, "04dea48e", COMPLETED, "the four names that it passes", preludes.whole_signature, checks.export_at_default_opset),
    Case("002", 1, "6befb358", COMPLETED, "the class of the model", preludes.model_class, checks.simple_export),
    Case("002", 2, "ccd7b84a", NOT_CODE, "a row of dots stands for other lines", check=checks.init_redirects),
    Case("002", 3, "cc475f21", COMPLETED, "the model and its input", preludes.model_with_batches, checks.open_batch),
    Case("002", 4, "0e1932a5", AS_PRINTED, "a dict, then used for an export", check=checks.open_axes),
    Case("002", 5, "90ec0de1", NOT_CODE, "the outer brace is never closed", check=checks.open_named_axes),
    Case("002", 6, "040b8c6f", AS_PRINTED, "a dict, then used for an export", check=checks.open_axes),
    Case("002", 7, "81b4d803", COMPLETED, "the model it leaves blank", preludes.blank_model, checks.named_at_opset_11),
    Case("002", 8, "38b2fd69", COMPLETED, "the model it leaves blank", preludes.blank_model, checks.named_at_opset_11),
    Case("003", 0, "cc56cdb8", COMPLETED, "imports", preludes.super_resolution, checks.resizes_at_run_time),
    Case("003", 1, "83ef3492", COMPLETED, "imports, weights, a picture, OpenCV", preludes.defined_interpolation, checks.upscaled_picture),
    Case("003", 2, "3d47d73f", COMPLETED, "imports, srcnn.onnx, OpenCV", preludes.loaded_super_resolution, checks.five_times_in_the_runtime),
    Case("003", 3, "23d84a28", NOT_CODE, "a signature without a body", check=checks.signature_is_linger_s),
    Case("004", 0, "6493b54f", COMPLETED, "imports", preludes.course, checks.linear_model),
    Case("004", 1, "1f2fc0ea", COMPLETED, "imports", preludes.course_with_linear, checks.inferred),
    Case("004", 2, "cfe100a8", COMPLETED, "imports, ../models", preludes.course_with_linear, checks.exported_linear),
    Case("004", 3, "fadda45c", COMPLETED, "imports, ../models, model and input", preludes.course_with_model, checks.exported_linear),
    Case("004", 4, "f86ee4ee", COMPLETED, "imports", preludes.course, checks.two_heads),
    Case("004", 5, "4e77e9c7", COMPLETED, "imports, ../models", preludes.course_with_two_heads, checks.exported_two_heads),
    Case("004", 6, "8aed416c", COMPLETED, "imports, ../models, model and input", preludes.course_with_model, checks.exported_open_batch),
    Case("004", 7, "3131f9c3", COMPLETED, "../models", preludes.course, checks.folded_batch_norm),
    Case("004", 8, "4cfd1963", COMPLETED, "imports", preludes.unbound_asinh, checks.exported_asinh),
    Case("004", 9, "b6d51e51", COMPLETED, "imports, the model and its file", preludes.exported_asinh, checks.validated_asinh),
    Case("004", 10, "7d84a8c5", COMPLETED, "imports, torchvision's operator", preludes.symbolic_helpers, checks.custom_deform_conv),
    Case("004", 11, "01ba4719", NOT_CODE, "an empty block"),
)  # fmt: skip


def cases(*kinds: str):
    chosen = [case for case in CASES if case.kind in kinds]
    return pytest.mark.parametrize("case", chosen, ids=str)


def all_blocks(shared, document: str) -> list[Block]:
    (page,) = (shared / "seeds").glob(f"{document}_*.txt")
    return read_blocks(page)


def python_blocks(shared, document: str) -> list[Block]:
    return [block for block in all_blocks(shared, document) if block.is_python]


@pytest.fixture
def stage(request, shared, tmp_path, monkeypatch):
    """A stage for the document of the test's case, in an empty folder; afterwards torch is as before."""
    monkeypatch.chdir(tmp_path)
    case = request.node.callspec.params["case"]
    made = Stage(python_blocks(shared, case.document), tmp_path, monkeypatch)
    with made.cleanup:
        yield made


@pytest.mark.parametrize("document", COUNTS)
def test_no_block_has_vanished(shared, document):
    expected = [(case.index, case.digest) for case in CASES if case.document == document]
    assert [(i, block.digest) for i, block in enumerate(python_blocks(shared, document))] == expected
    assert Counter(case.kind for case in CASES if case.document == document) == COUNTS[document]


def test_no_document_has_vanished(shared):
    assert sorted(page.name[:3] for page in (shared / "seeds").iterdir()) == sorted(COUNTS)


@pytest.mark.parametrize("document", COUNTS)
def test_what_is_labeled_as_something_else_is_known(shared, document):
    others = [block.language for block in all_blocks(shared, document) if not block.is_python]
    assert others == (["bash"] * 4 if document == "004" else [])


@cases(AS_PRINTED, COMPLETED)
def test_block_runs(case, stage):
    case.prelude(stage)
    if case.check is checks.debug_file:  # the one block that asks for a file that cannot run
        with pytest.warns(UserWarning, match="is_update_dequant=False") as caught:
            stage.run(case.index)
        assert len(caught) == 1
    else:
        stage.run(case.index)
    case.check(stage)


@cases(NOT_CODE)
def test_fragment_is_not_code(case, stage):
    block = stage.blocks[case.index]
    if block.text.strip() and case.reason != LOG:
        with pytest.raises(SyntaxError):
            block.code()
    elif case.reason == LOG:
        assert block.is_only_a_string
    case.check(stage)


def test_python_under_a_shell_label_runs_too(shared, tmp_path, monkeypatch):
    """One block that its fence calls bash is a symbolic function of torch itself."""
    monkeypatch.chdir(tmp_path)
    (block,) = (found for found in all_blocks(shared, "004") if found.digest == "7a817097")
    used = []

    def register(name):
        def decorate(function):
            def counted(g, *arguments):
                used.append(name)
                return function(g, *arguments)

            register_custom_op_symbolic(name, counted, 12)
            return function

        return decorate

    names = {
        "_onnx_symbolic": register,
        "symbolic_helper": symbolic_helper,
        "_beartype": SimpleNamespace(beartype=lambda function: function),
        "jit_utils": jit_utils,
        "reshape": reshape,
    }
    exec(block.code(), names)
    try:
        linger.onnx.export(Reshaped(), (checks.whole(2, 6), checks.whole(3, 4)), "reshaped.onnx", opset_version=12)
    finally:
        unregister_custom_op_symbolic("aten::reshape_as", 12)
    assert used == ["aten::reshape_as"]
    checks.assert_runs_as(Reshaped(), "reshaped.onnx", checks.whole(2, 6), checks.whole(3, 4))


class Reshaped(nn.Module):
    def forward(self, x, like):
        return x.reshape_as(like) + like


def test_fences_open_and_close_as_in_commonmark():
    text = "a\n```py\nx\n```python\n```\n```word``` inline\n``` python\n\n```\n"
    assert [(b.language, b.line, b.text) for b in find_blocks(text)] == [
        ("py", 3, "x\n```python\n"),
        ("python", 8, "\n"),
    ]


def test_block_that_is_never_closed_is_an_error():
    with pytest.raises(ValueError, match="page:3: the block is never closed"):
        find_blocks("\n```py\nx = 1\n")
