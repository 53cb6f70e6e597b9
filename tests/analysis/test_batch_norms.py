"""Weights as they will be quantized: batch norms folded in by the names of a checkpoint, limits kept."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import linger
from linger import advise, wb_analyse


class Named(nn.Module):
    """Modules under the names of a user, in the order in which they are given."""

    def __init__(self, **modules):
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)


def conv(channels=4, out=None):
    return nn.Conv2d(channels, out or channels, 3)


def state(model, loud=()):
    """A checkpoint with statistics that matter; the batch norms in `loud` make one channel much larger."""
    torch.manual_seed(0)
    for path, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            if path in loud:
                module.running_var[0] = 1e-7
    return model.state_dict()


def pairs(source):
    return [row.name for row in wb_analyse(source, None).folded]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        pytest.param(Named(conv1=conv(), bn1=nn.BatchNorm2d(4)), ["conv1.weight with bn1"], id="numbered"),
        pytest.param(Named(conv=conv(), norm=nn.BatchNorm2d(4)), ["conv.weight with norm"], id="norm"),
        pytest.param(Named(dw_conv=conv(), dw_bn=nn.BatchNorm2d(4)), ["dw_conv.weight with dw_bn"], id="prefix"),
        pytest.param(nn.Sequential(conv(), nn.BatchNorm2d(4)), ["0.weight with 1"], id="sequential"),
        pytest.param(
            Named(downsample=nn.Sequential(conv(), nn.BatchNorm2d(4))),
            ["downsample.0.weight with downsample.1"],
            id="inside",
        ),
        pytest.param(nn.Sequential(conv(), nn.ReLU(), nn.BatchNorm2d(4)), [], id="a ReLU between"),
        pytest.param(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), [], id="no convolution"),
        pytest.param(nn.Sequential(nn.BatchNorm2d(4), conv()), [], id="before it in a sequential"),
        pytest.param(Named(bn1=nn.BatchNorm2d(4), conv1=conv()), [], id="before it"),
        pytest.param(Named(conv1=conv(4, 8), bn1=nn.BatchNorm2d(4)), [], id="other channels"),
        pytest.param(Named(conv1=conv(), bn2=nn.BatchNorm2d(4)), [], id="other numbers"),
        pytest.param(
            Named(deconv1=nn.ConvTranspose2d(4, 4, 3), debn1=nn.BatchNorm2d(4)), [], id="transposed, axes unknown"
        ),
        pytest.param(
            nn.Sequential(Named(conv1=conv(), bn1=nn.BatchNorm2d(4)), Named(conv1=conv(4, 8), bn1=nn.BatchNorm2d(4))),
            [],
            id="one of this spelling does not fit",
        ),
    ],
)
def test_pairs_by_their_names(model, expected):
    assert pairs(state(model)) == expected


def test_sorted_names_tell_no_order(tmp_path):
    save_file(state(Named(conv1=conv(), bn1=nn.BatchNorm2d(4))), tmp_path / "m.safetensors")
    assert pairs(tmp_path / "m.safetensors") == ["conv1.weight with bn1"]


def test_checkpoint_is_judged_as_the_fused_model_will_be():
    model = Named(conv1=nn.Conv2d(4, 16, 3), bn1=nn.BatchNorm2d(16))
    model.forward = lambda x: model.bn1(model.conv1(x))
    checkpoint = state(model, loud=["bn1"])
    items = {item.name: item for item in advise(checkpoint).items}
    raw, folded = items["conv1.weight"], items["conv1.weight with bn1"]
    assert raw.advice.startswith("before bn1 is folded in, which is what counts: 8 bits suffice")
    assert folded.role == "folded"
    assert folded.channel_db < 10 < 40 < raw.channel_db
    linger.trace_layers(model.eval(), torch.randn(1, 4, 6, 6))
    (fused,) = (item for item in advise(model).items if item.name == "conv1.weight")
    assert (folded.max, folded.sqnr_8, folded.channel_db) == (fused.max, fused.sqnr_8, fused.channel_db)
    assert advise(checkpoint).lines == advise(model).lines
    assert len(advise(checkpoint).lines) == 1


def test_rows_of_a_checkpoint_stay_and_the_folded_ones_follow(tmp_path):
    checkpoint = state(Named(conv1=conv(), bn1=nn.BatchNorm2d(4)))
    made = wb_analyse(checkpoint, tmp_path / "wb.log")
    plain = wb_analyse({k: v for k, v in checkpoint.items() if "running" not in k}, None)
    assert [row.cells() for row in made.rows] == [row.cells() for row in plain.rows]
    assert not plain.folded
    log = (tmp_path / "wb.log").read_text()
    assert log.startswith(str(plain) + "Folded, as they will be quantized:\n+--")
    scale = checkpoint["bn1.weight"] * torch.rsqrt(checkpoint["bn1.running_var"] + 1e-5)
    expected = checkpoint["conv1.weight"] * scale[:, None, None, None]
    assert made.folded[0].max == float(expected.abs().max())


@pytest.mark.parametrize("is_traced", [False, True], ids=["as written", "traced"])
def test_limits_make_the_alarm_go_away(is_traced, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 16, 3), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(16 * 16, 3)).eval()
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = model[3].weight[0, 0] = 90.0
    if is_traced:
        linger.trace_layers(model, torch.randn(1, 4, 6, 6))
    torch.save({"state_dict": model.state_dict()}, tmp_path / "before.pth")
    before = wb_analyse(tmp_path / "before.pth", tmp_path / "before.log")
    assert len(before.abnormal) == 2
    assert len([row for row in before.folded if row.is_abnormal]) == 1
    keys = list(model.state_dict())
    limited = linger.normalize_layers(model, normalize_weight_value=0.125)
    assert list(limited.state_dict()) == keys
    torch.save({"state_dict": limited.state_dict()}, tmp_path / "after.pth")
    for source in (limited, limited.state_dict(), tmp_path / "after.pth"):
        after = wb_analyse(source, tmp_path / "after.log")
        assert after.abnormal == ()
        assert not any(row.is_abnormal for row in after.folded)
        assert "!!!" not in (tmp_path / "after.log").read_text()
        assert "0.125" in "".join(after.notes)
    assert float(limited.state_dict()["3.weight"].max()) == 90.0  # what is trained on is not touched
    assert all(item.limit is None for item in advise(tmp_path / "after.pth").items)


def test_a_limited_checkpoint_loads_with_and_without_limits():
    limited = linger.normalize_layers(nn.Sequential(nn.Linear(2, 2)), normalize_weight_value=0.125)
    saved = limited.state_dict()
    nn.Sequential(nn.Linear(2, 2)).load_state_dict(saved, strict=True)
    limited.load_state_dict(nn.Sequential(nn.Linear(2, 2)).state_dict(), strict=True)
