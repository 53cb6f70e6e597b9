"""Hard models: the right numbers, in torch and in the file, or an error that says what to do. Never silently wrong."""

import copy
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
import torch.nn.utils.prune as pruning
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils import checkpoint

import linger
from linger.errors import UnsupportedError, UsageError
from tests.support.robust import assert_close, assert_right, calibrated, real
from tests.support.wired import Wired, image


def chain(m, x):
    return m.conv2(F.relu(m.conv(x)))


def cases(*functions):
    return pytest.mark.parametrize("forward", functions, ids=[f.__name__.strip("_") for f in functions])


# -- writes in place that come out right ---------------------------------------------------------------------


def mask_is_set(m, x):
    h = m.conv(x)
    h[h < 0] = 0
    return m.conv2(h)


def slice_is_set(m, x):
    h = m.conv(x)
    g = m.conv2(F.relu(h))
    h[:, 1] = g[:, 2]
    return m.conv2(h)


def slices_are_swapped(m, x):
    h = m.conv(x)
    first = h[:, 0].clone()
    h[:, 0] = h[:, 1]
    h[:, 1] = first
    return m.conv2(h)


def zeros_are_filled(m, x):
    h = m.conv(x)
    z = torch.zeros(2, 8, 6, 6)
    z[:, :4] = h
    z[:, 4:] = F.relu(h)
    return z


def like_zeros_are_filled(m, x):
    h = m.conv(x)
    z = torch.zeros_like(h)
    z[:, :2] = h[:, 2:]
    return m.conv2(z)


def sum_under_another_name(m, x):
    h = m.conv(x)
    same = h
    h.add_(m.conv2(h))
    return m.conv2(same)


def relu_under_another_name(m, x):
    h = m.conv(x)
    same = h
    F.relu_(h)
    return m.conv2(same) + h


def relu_layer_in_place(m, x):
    h = m.conv(x)
    y = m.relu_in_place(h)
    return h + m.conv2(y)


def clamp_under_another_name(m, x):
    h = m.conv(x)
    same = h
    h.clamp_(-0.5, 0.5)
    return m.conv2(same)


def sigmoid_under_another_name(m, x):
    h = m.conv(x)
    same = h
    h.sigmoid_()
    return m.conv2(same)


def float_function_in_place(m, x):
    h = m.conv(x)
    same = h
    h.exp_()
    return m.conv2(same)


def masked_fill_in_place(m, x):
    h = m.conv(x)
    h.masked_fill_(h > 0.3, 0.0)
    return m.conv2(h)


def index_add_in_place(m, x):
    h = m.conv(x)
    h.index_add_(1, torch.tensor([0]), h[:, 1:2].clone())
    return m.conv2(h)


def float_tensor_takes_a_sum(m, x):
    z = torch.ones(2, 4, 6, 6)
    z += m.conv(x)
    return m.conv2(z)


def float_island_takes_a_sum(m, x):
    z = torch.exp(m.conv(x))
    z += m.conv2(z)
    return m.conv2(z)


def copy_is_written(m, x):
    h = m.conv(x)
    other = h.clone()
    other.zero_()
    return m.conv2(h)


def double_copy_is_written(m, x):
    h = m.conv(x)
    other = h.double()
    other.zero_()
    return m.conv2(h)


def out_is_the_operand(m, x):
    h = m.conv(x)
    torch.add(h, m.conv2(h), out=h)
    return m.conv2(h)


def out_is_the_other_operand(m, x):
    h = m.conv(x)
    g = m.conv2(h)
    torch.mul(h, g, out=g)
    return m.conv2(g)


@cases(
    mask_is_set,
    slice_is_set,
    slices_are_swapped,
    zeros_are_filled,
    like_zeros_are_filled,
    sum_under_another_name,
    relu_under_another_name,
    relu_layer_in_place,
    clamp_under_another_name,
    sigmoid_under_another_name,
    float_function_in_place,
    masked_fill_in_place,
    index_add_in_place,
    float_tensor_takes_a_sum,
    float_island_takes_a_sum,
    copy_is_written,
    double_copy_is_written,
    out_is_the_operand,
    out_is_the_other_operand,
)
@pytest.mark.thin
def test_writes_in_place_come_out_right(forward, tmp_path):
    assert_right(Wired(forward), image(), path=tmp_path / "net.onnx")


# -- writes in place that are refused ------------------------------------------------------------------------


def written(make, write=lambda t: t.zero_()):
    """A part, view or alias of a quantized tensor is written; then the tensor itself is used."""

    def forward(m, x):
        h = m.conv(x)
        write(make(h))
        return m.conv2(h)

    return forward


ALIASES = {
    "slice": lambda h: h[:, 1],
    "view": lambda h: h.view(2, -1),
    "detach": lambda h: h.detach(),
    "data": lambda h: h.data,
    "float": lambda h: h.float(),
    "dequantize": lambda h: h.dequantize(),
    "diagonal": lambda h: h.diagonal(dim1=2, dim2=3),
    "unfold": lambda h: h.unfold(2, 2, 2),
    "as_strided": lambda h: h.as_strided((2, 4), (144, 36)),
    "real": lambda h: h.real,
    "positive": torch.positive,
    "atleast_3d": torch.atleast_3d,
    "broadcast_tensors": lambda h: torch.broadcast_tensors(h, torch.zeros(1))[0],
    "hsplit": lambda h: torch.hsplit(h, 2)[0],
    "einsum": lambda h: torch.einsum("nchw->nchw", h),
}


@pytest.mark.parametrize("make", ALIASES.values(), ids=ALIASES.keys())
@pytest.mark.parametrize("write", [lambda t: t.zero_(), lambda t: t.add_(0.3)], ids=["zero", "add"])
def test_a_write_through_a_view_is_refused_when_the_tensor_is_used(make, write):
    with pytest.raises(UnsupportedError, match=r"shares its memory .* was changed in place"):
        calibrated(Wired(written(make, write)), image())


def data_is_assigned(m, x):
    h = m.conv(x)
    h.data = torch.zeros(2, 4, 6, 6)
    return m.conv2(h)


def storage_is_set(m, x):
    h = m.conv(x)
    h.set_(torch.zeros(2, 4, 6, 6))
    return m.conv2(h)


def list_is_written(m, x):
    h = m.conv(x)
    g = m.conv2(h)
    torch._foreach_add_([h, g], 1.0)
    return h + g


def several_results_are_written(m, x):
    h = m.conv(x)
    torch.max(h, 1, out=(h, torch.zeros(0, dtype=torch.long)))
    return h


@cases(data_is_assigned, storage_is_set, list_is_written, several_results_are_written)
def test_a_write_that_nobody_would_see_is_refused(forward):
    with pytest.raises(UnsupportedError, match="writes over a quantized tensor unseen"):
        calibrated(Wired(forward), image())


def test_an_array_of_a_tensor_inside_a_model_cannot_be_written():
    def forward(m, x):
        h = m.conv(x)
        h.detach().numpy()[:] = 0
        return m.conv2(h)

    with pytest.raises(ValueError, match="read-only"):
        calibrated(Wired(forward), image())


def test_an_array_of_a_result_belongs_to_the_caller():
    model = calibrated(Wired(chain), image())
    result = model(image())
    array = result.detach().numpy()
    before = array.copy()
    array[:] = 0
    assert (result.detach().numpy() == before).all()


@pytest.mark.parametrize("write", ["copy_", "add_", "mul_"])
def test_a_part_of_a_float_tensor_that_takes_a_quantized_one_is_refused_by_the_export(write, tmp_path):
    """Torch's exporter forgets such a write; the simulation is right."""

    def forward(m, x):
        z = torch.exp(m.conv(x))
        getattr(z[:, :2], write)(m.conv2(z)[:, :2])
        return z + 1

    model = assert_right(Wired(forward), image())
    with pytest.raises(UnsupportedError, match=r"into a part of a float tensor.* Write z\[:, :2\] = "):
        linger.onnx.export(model, (image(),), tmp_path / "net.onnx")


# -- modules and weights used more than once ------------------------------------------------------------------


def called_twice(m, x):
    return m.conv2(F.relu(m.conv2(m.conv(x))))


def called_with_other_ranges(m, x):
    return m.conv(x) + m.conv(10 * x)


def called_with_floats_and_integers(m, x):
    return m.conv2(m.conv(x)) + m.conv2(x.repeat(1, 2, 1, 1)[:, :4] * 5)


def weight_in_a_function(m, x):
    return F.conv_transpose2d(m.conv(x), m.conv.weight, padding=1)


@cases(called_twice, called_with_other_ranges, called_with_floats_and_integers, weight_in_a_function)
def test_modules_and_weights_used_twice(forward, tmp_path):
    assert_right(Wired(forward), image(), path=tmp_path / "net.onnx")


class Tied(nn.Module):
    """Words in and out of one table."""

    def __init__(self):
        super().__init__()
        self.words, self.middle, self.out = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
        self.out.weight = self.words.weight

    def forward(self, i):
        return self.out(F.relu(self.middle(self.words(i))))


@pytest.mark.parametrize("bits", [(8, 8), (4, 16)], ids=["same width", "other widths"])
def test_tied_weights_stay_tied(bits, tmp_path):
    model, words = Tied(), torch.arange(20).reshape(2, 10)
    linger.quant_module(model.words, [nn.Embedding], parameter_bits=bits[0])
    linger.quant_module(model.out, parameter_bits=bits[1])
    expected = real(model(words))
    quantized = linger.init(model, quant_modules=[nn.Linear, nn.Embedding]).eval()
    with linger.calibration():
        quantized(words)
    assert quantized.words.weight is quantized.out.weight
    if bits == (8, 8):  # 4 bits round coarsely
        assert_close(real(quantized(words)), expected)
    linger.onnx.export(quantized, (words,), tmp_path / "net.onnx")
    assert linger.verify(quantized, tmp_path / "net.onnx", (words,)).ok


# -- control flow ---------------------------------------------------------------------------------------------


def by_shape(m, x):
    h = m.conv(x)
    return m.conv2(h) if h.shape[0] > 1 else h


def loop_over_rows(m, x):
    h = m.conv(x)
    total = 0
    for i in range(h.shape[2]):
        total = total + h[:, :, i]
    return total


@cases(by_shape, loop_over_rows)
def test_control_flow_by_shape(forward, tmp_path):
    assert_right(Wired(forward), image(), path=tmp_path / "net.onnx")


def by_value(m, x):
    h = m.conv(x)
    return m.conv2(h) if h.mean() > 0 else m.conv2(-h)


def until_small(m, x):
    h = m.conv(x)
    for _ in range(5):
        if h.abs().max() <= 0.25:
            break
        h = h * 0.5
    return h


def by_a_number(m, x):
    h = m.conv(x)
    return m.conv2(h / h.abs().max().item())


@cases(by_value, until_small, by_a_number)
def test_control_flow_by_value_is_right_in_torch_and_announced_by_the_export(forward, tmp_path):
    model = assert_right(Wired(forward), image())
    with pytest.warns(UserWarning, match=r"reads values of tensors at test_robustness\.py:\d+\. The file keeps"):
        linger.onnx.export(model, (image(),), tmp_path / "net.onnx")


def through_numpy(m, x):
    return m.conv2(torch.tensor(m.conv(x).detach().numpy() * 2))


def through_a_list(m, x):
    return m.conv2(torch.tensor(m.conv(x).tolist()))


@cases(through_numpy, through_a_list)
def test_values_that_leave_torch_are_announced_by_the_export(forward, tmp_path):
    model = assert_right(Wired(forward), image())
    with (
        pytest.warns(UserWarning, match="reads values of tensors"),
        pytest.warns(UserWarning, match="0 of the 1 inputs"),
    ):
        linger.onnx.export(model, (image(),), tmp_path / "net.onnx")


# -- pieces without gradients, collections, copies ------------------------------------------------------------


def detached(m, x):
    return m.conv2(m.conv(x).detach())


def without_gradient(m, x):
    with torch.no_grad():
        h = m.conv(x)
    return m.conv2(h)


def in_inference_mode(m, x):
    with torch.inference_mode():
        h = m.conv(x)
    return m.conv2(h.clone())


def in_a_collection(m, x):
    parts = {"a": m.conv(x), "b": [m.conv(x * 0.5)]}
    return torch.cat([parts["a"], *parts["b"]], 1)


def summed_as_a_list(m, x):
    return sum([m.conv(x), m.conv(x * 0.5), m.conv(x * 0.1)])


def as_a_dict(m, x):
    h = m.conv(x)
    return {"a": h, "b": [m.conv2(h), (F.relu(h),)]}


def kept_on_the_model(m, x):
    m.last = m.conv(x)
    return m.conv2(m.last)


def copied_in_between(m, x):
    return m.conv2(copy.deepcopy(m.conv(x).detach()))


def as_half(m, x):
    return m.conv2(m.conv(x).half().float())


def as_double(m, x):
    return m.conv2(m.conv(x).double().float())


def a_slice_of_a_sequence(m, x):
    return nn.Sequential(m.conv, m.relu, m.conv2)[:2](x)


def checkpointed(m, x):
    return m.conv2(checkpoint.checkpoint(lambda y: F.relu(m.conv(y)), x, use_reentrant=False))


def unknown_function(m, x):
    return m.conv2(torch.erf(m.conv(x)).cumsum(1))


@cases(
    detached,
    without_gradient,
    in_inference_mode,
    in_a_collection,
    summed_as_a_list,
    as_a_dict,
    kept_on_the_model,
    copied_in_between,
    as_half,
    as_double,
    a_slice_of_a_sequence,
    checkpointed,
    unknown_function,
)
@pytest.mark.thin
def test_unusual_forwards_come_out_right(forward, tmp_path):
    assert_right(Wired(forward), image(), path=tmp_path / "net.onnx")


def test_checkpointing_gives_the_same_gradients():
    def gradients(is_checkpointed):
        def part(m, y):
            h = F.relu(m.conv(y))
            return h + m.conv2(h)

        def forward(m, x):
            return checkpoint.checkpoint(part, m, x, use_reentrant=False) if is_checkpointed else part(m, x)

        torch.manual_seed(0)
        model = linger.init(Wired(forward)).train()
        model(image()).square().sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    for found, expected in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(found, expected)


# -- models that are copied, pickled, shared by threads ----------------------------------------------------------


class Plain(nn.Module):
    """A model that a file can name."""

    def __init__(self):
        super().__init__()
        self.conv, self.conv2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        h = F.relu(self.conv(x))
        return self.conv2(h) + h


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model))}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES.keys())
def test_a_copied_model_computes_and_exports_alone(copied, tmp_path):
    model, x = calibrated(Plain(), image()), image()
    expected = real(model(x))[0].clone()
    other = copied(model)
    with torch.no_grad():
        model.conv.weight.mul_(2)
    assert torch.equal(real(other(x))[0], expected)
    linger.onnx.export(other, (x,), tmp_path / "net.onnx")
    assert linger.verify(other, tmp_path / "net.onnx", (x,)).ok


def test_threads_may_share_a_model():
    model = Plain()
    quantized = calibrated(model, 3 * image())
    inputs = [image(seed=i) for i in range(4)]
    expected = [real(quantized(x))[0].clone() for x in inputs]
    wrong = []

    def work(i):
        for _ in range(25):
            with torch.no_grad():
                if not torch.equal(real(quantized(inputs[i]))[0], expected[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_replica_computes_the_same():
    model = calibrated(Plain(), image())
    assert torch.equal(real(model._replicate_for_data_parallel()(image()))[0], real(model(image()))[0])


# -- precision -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=["half", "double"])
def test_a_model_of_another_type(dtype, tmp_path):
    assert_right(Wired(chain).to(dtype), image().to(dtype), path=tmp_path / "net.onnx")


def test_a_model_in_bfloat16(tmp_path):
    x = image().bfloat16()
    model = Wired(chain).bfloat16()
    expected = real(model(x))
    quantized = calibrated(model, x)
    assert_close(real(quantized(x)), expected)
    linger.onnx.export(quantized, (x.float(),), tmp_path / "net.onnx")
    assert linger.verify(quantized, tmp_path / "net.onnx", (x.float(),)).ok


@pytest.mark.parametrize("mode", ["evaluation", "training", "calibration"])
def test_autocast_changes_no_bit(mode):
    def run(is_on):
        torch.manual_seed(0)
        model = linger.init(Wired(lambda m, x: (lambda h: h @ h.transpose(2, 3))(chain(m, x)))).eval()
        if mode == "training":
            model.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_on and mode == "calibration"), linger.calibration():
            model(image())
        with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
            result = model(image())
            assert torch.is_autocast_enabled("cpu") == is_on
        return real(result)[0]

    assert torch.equal(run(True), run(False))


def test_autocast_inside_forward_changes_no_integer():
    def inside(m, x):
        with torch.autocast("cpu", torch.bfloat16):
            h = m.conv(x)
            return h @ h.transpose(2, 3)

    def outside(m, x):
        h = m.conv(x)
        return h @ h.transpose(2, 3)

    torch.manual_seed(0)
    found = calibrated(Wired(inside), image())(image())
    torch.manual_seed(0)
    expected = calibrated(Wired(outside), image())(image())
    assert torch.equal(found.integers(), expected.integers())


# -- hooks -----------------------------------------------------------------------------------------------------

HOOKS = {
    "output replaced": lambda m: m.conv.register_forward_hook(lambda module, args, output: output * 2),
    "output changed in place": lambda m: m.conv.register_forward_hook(lambda module, args, output: output.mul_(2)),
    "input replaced": lambda m: m.conv2.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "with keywords": lambda m: m.conv.register_forward_hook(lambda module, args, kw, out: out + 1, with_kwargs=True),
    "on the model": lambda m: m.register_forward_hook(lambda module, args, output: output + 1),
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS.keys())
def test_hooks_that_change_something_go_on_doing_so(hook, tmp_path):
    model = Wired(chain)
    hook(model)
    assert_right(model, image(), path=tmp_path / "net.onnx")


def test_a_hook_is_removed_by_its_handle_after_init():
    model = Wired(chain)
    handle = model.conv.register_forward_hook(lambda module, args, output: output * 0)
    quantized = linger.init(model).eval()
    handle.remove()
    with linger.calibration():
        quantized(image())
    assert float(real(quantized.conv(image()))[0].abs().max()) > 0.1


@pytest.mark.filterwarnings("ignore:trace_layers. 0 of 2")
def test_a_convolution_with_a_hook_is_not_joined_with_its_batch_norm():
    seen = []
    model = Wired(lambda m, x: F.relu(m.bn(m.conv(x)))).eval()
    model.conv.register_forward_hook(lambda module, args, output: seen.append(output))
    linger.trace_layers(model, image())
    seen.clear()
    model(image())
    assert len(seen) == 1


def test_backward_hooks_are_announced(caplog):
    model = Wired(chain)
    model.conv.register_full_backward_hook(lambda module, before, after: None)
    linger.init(model)
    assert "conv: backward hooks of a quantized layer are never called" in caplog.text


# -- weights that are computed, layers that are not there yet ----------------------------------------------------

COMPUTED = {
    "spectral_norm": parametrizations.spectral_norm,
    "pruned": lambda layer: pruning.l1_unstructured(layer, "weight", 0.5),
}


@pytest.mark.parametrize("compute", COMPUTED.values(), ids=COMPUTED.keys())
def test_a_computed_weight_stays_float_learns_and_says_what_to_do(compute, caplog):
    model = Wired(chain)
    compute(model.conv)
    before = [name for name, _ in model.conv.named_parameters()]
    quantized = linger.init(model)
    assert "conv" in caplog.text
    assert "its weight is computed from others" in caplog.text
    assert [name for name, _ in quantized.conv.named_parameters()] == before
    assert isinstance(quantized.conv, nn.Conv2d)
    quantized.train()(image()).sum().backward()
    assert all(p.grad is not None for p in quantized.conv.parameters())


def test_a_weight_made_permanent_is_quantized(tmp_path):
    model = Wired(chain)
    parametrizations.weight_norm(model.conv)
    parametrize.remove_parametrizations(model.conv, "weight")
    quantized = assert_right(model, image(), path=tmp_path / "net.onnx")
    assert linger.coverage(quantized).float_ops == ()


def test_a_lazy_layer_is_quantized_once_it_has_weights(tmp_path):
    model = Wired(chain)
    model.conv = nn.LazyConv2d(4, 3, padding=1)
    model(image())
    assert_right(model, image(), path=tmp_path / "net.onnx")


# -- what cannot be exported says so ---------------------------------------------------------------------------


class Square(torch.autograd.Function):
    """A function with a gradient of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def own_function(m, x):
    return m.conv2(Square.apply(m.conv(x)))


def test_autograd_function_is_exported(tmp_path):
    assert_right(Wired(own_function), image(), path=tmp_path / "net.onnx")


def reentrant_checkpoint(m, x):
    return m.conv2(checkpoint.checkpoint(lambda y: F.relu(m.conv(y)), x, use_reentrant=True))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_functions_that_a_trace_cannot_hold_are_named(tmp_path):
    model = assert_right(Wired(reentrant_checkpoint), image())
    with pytest.raises(UsageError, match=r"cannot export .* uses a reentrant checkpoint, or"):
        linger.onnx.export(model, (image(),), tmp_path / "net.onnx")


class Around(nn.Module):
    """A float model with a quantized part."""

    def __init__(self):
        super().__init__()
        self.part, self.fc = linger.init(Wired(chain)), nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(self.part(x).mean((2, 3)))


def test_a_float_model_around_a_quantized_one_is_refused(tmp_path):
    model = Around().eval()
    with linger.calibration():
        model(image())
    with pytest.raises(UsageError, match=r"part\.conv.* is quantized, the model as a whole is not\. Call linger\.init"):
        linger.onnx.export(model, (image(),), tmp_path / "net.onnx")


def test_a_float_write_that_torchs_exporter_forgets_is_found_by_verify(tmp_path):
    def forward(m, x):
        z = torch.exp(m.conv(x))
        flat = z.view(2, -1)
        z.add_(1)
        return flat

    model = assert_right(Wired(forward), image())
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx")
    proof = linger.verify(model, tmp_path / "net.onnx", (image(),))
    assert not proof.ok
    assert "288 output values differ" in proof.summary()
