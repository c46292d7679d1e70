"""Which axis holds the channels is read off the layers of a unit, never off sizes."""

import pytest
import timm
import torch
import torchvision
from torch import fx, nn
from transformers.models.convnext.modeling_convnext import ConvNextLayerNorm

import mhex
from mhex.errors import ArgumentError, CaptureError, MhexWarning, UnsupportedModelError
from mhex.heads.predictors import watched
from mhex.heads.wiring.channels import Channels, moved_by
from mhex.heads.wiring.residual import survey
from support.hosts import HOSTS
from support.residual_units import CLASSES, WIDTH, Net, Unit, images

pytestmark = pytest.mark.filterwarnings("ignore:The heads have:mhex.errors.MhexWarning")
LAST = {"timm_vit", "tv_vit", "hf_vit", "hf_dinov2", "hf_bert", "hf_roberta", "hf_distilbert"}


@pytest.mark.parametrize("name", HOSTS)
def test_the_axis_of_channels_is_found_in_every_host(name):
    with torch.device("meta"):
        model = HOSTS[name]()
    assert {j.meeting.channels_last for j in survey(model).junctions} == {name in LAST}


def swin_of_square_maps():
    """Maps (B, 16, 16, 16) in its first stage and (B, 8, 8, 32) in its second."""
    return torchvision.models.SwinTransformer([4, 4], 16, [1, 1], [2, 2], [4, 4], num_classes=CLASSES).eval()


def test_channels_last_maps_as_high_as_they_are_deep():
    torch.manual_seed(0)
    model, x = swin_of_square_maps(), torch.randn(2, 3, 64, 64)
    before = model(x)
    scaffold = mhex.attach(model, CLASSES)
    assert torch.equal(model(x), before)
    with watched(model) as see:
        blocks = see(x).blocks
    assert blocks["features.1.0"].shortcut.shape == (2, 16, 16, 16)
    for seen in blocks.values():
        assert torch.allclose(seen.pooled, (seen.shortcut + seen.branch).mean((1, 2)), atol=1e-5)
    nn.init.normal_(scaffold.heads["features.1.0"].w1.weight)
    wanted, folded = model(x), scaffold.fold("classifier")
    assert not torch.allclose(wanted, before, rtol=1e-3)
    assert torch.allclose(folded(x), wanted, atol=1e-6)
    options = {"alpha": 1.0, "sharpness": 0.0, "activation": "sum", "target": 1}
    one = mhex.explain(model, x, method="mhex", blocks=["features.1.0"], **options)
    with watched(model) as see:
        seen = see(x).blocks["features.1.0"]
    rows = scaffold.equivalent_matrix("features.1.0")[1]
    assert torch.allclose(one.scores, (seen.shortcut + seen.branch) @ rows, atol=1e-5)


def test_channels_first_maps_as_high_as_they_are_deep():
    model, x = Net(Unit(), Unit()).eval(), images(side=WIDTH)
    mhex.attach(model, CLASSES)
    with watched(model) as see:
        blocks = see(x).blocks
    for seen in blocks.values():
        assert torch.allclose(seen.pooled, (seen.shortcut + seen.branch).mean((2, 3)), atol=1e-6)


class Turning(nn.Module):
    """Runs its layers on another layout than it takes and gives."""

    def __init__(self, there, back, layer):
        super().__init__()
        self.there, self.back, self.layer = there, back, layer

    def forward(self, x):
        return x + self.back(self.layer(self.there(x)))


@pytest.mark.parametrize(
    ("there", "back"),
    [
        (lambda x: x.permute(0, 2, 3, 1), lambda x: x.permute(0, 3, 1, 2)),
        (lambda x: torch.permute(x, (0, 2, 3, 1)), lambda x: torch.permute(x, (0, 3, 1, 2))),
        (lambda x: x.transpose(1, 2).transpose(2, 3), lambda x: x.transpose(3, 2).transpose(2, 1)),
        (
            lambda x: x.flatten(2).transpose(1, 2),
            lambda x: x.transpose(-1, -2).reshape(x.shape[0], WIDTH, WIDTH, WIDTH),
        ),
        (lambda x: x.flatten(2).mT, lambda x: x.mT.unflatten(2, (WIDTH, WIDTH))),
    ],
    ids=["permute", "function", "transpose", "tokens", "mT"],
)
def test_a_linear_layer_on_maps_that_were_turned(there, back):
    model, x = Net(Turning(there, back, nn.Linear(WIDTH, WIDTH))).eval(), images(side=WIDTH)
    before = model(x)
    scaffold = mhex.attach(model, CLASSES)
    assert torch.allclose(model(x), before, rtol=1e-6)  # sums of other strides are rounded in another order
    assert not scaffold.heads["units.0"].channels_last
    with watched(model) as see:
        seen = see(x).blocks["units.0"]
    assert torch.allclose(seen.pooled, (seen.shortcut + seen.branch).mean((2, 3)), atol=1e-6)


def test_a_convolution_on_maps_that_were_turned():
    class Last(Net):
        def forward(self, x):
            x = self.stem(x).permute(0, 2, 3, 1)
            return self.head(self.units[0](x).mean((1, 2)))

    unit = Turning(
        lambda x: x.permute(0, 3, 1, 2), lambda x: x.permute(0, 2, 3, 1), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
    )
    model, x = Last(unit).eval(), images(side=WIDTH)
    scaffold = mhex.attach(model, CLASSES)
    assert scaffold.heads["units.0"].channels_last
    with watched(model) as see:
        seen = see(x).blocks["units.0"]
    assert torch.allclose(seen.pooled, (seen.shortcut + seen.branch).mean((1, 2)), atol=1e-6)


def test_tokens_that_are_mixed_across():
    """The last layer of a mixer's first branch has as many channels as there are tokens; its norm tells C."""
    with torch.device("meta"):
        model = timm.create_model("mixer_s32_224", img_size=64, num_classes=3)  # four tokens
    assert {j.meeting.channels for j in survey(model).junctions} == {512}


@pytest.mark.parametrize(
    "norm",
    [
        timm.layers.LayerNorm2d,
        torchvision.models.convnext.LayerNorm2d,
        lambda c: ConvNextLayerNorm(c, data_format="channels_first"),
    ],
    ids=["timm", "torchvision", "hugging_face"],
)
def test_layer_norms_of_maps(norm):
    unit = Unit()
    unit.body = nn.Sequential(unit.body, norm(WIDTH))
    assert not mhex.attach(Net(unit), CLASSES).heads["units.0"].channels_last


def test_channel_attention_at_the_end_of_a_branch():
    """It ends in a convolution over channels (timm's ECA), which says nothing of the map."""
    with torch.device("meta"):
        model = timm.create_model("ecaresnet26t", num_classes=3)
    found = survey(model).junctions
    assert len(found) == 8
    assert not any(j.meeting.channels_last for j in found)
    assert {j.meeting.channels for j in found} == {256, 512, 1024, 2048}


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv3d])
def test_sequences_and_volumes_are_refused(kind):
    unit = Unit()
    unit.body = kind(WIDTH, WIDTH, 3, padding=1)
    with pytest.raises(UnsupportedModelError, match="channels on another axis"):
        mhex.attach(Net(unit), CLASSES)
    model = Net(Unit(), unit)
    with pytest.warns(MhexWarning, match=r"units\.1: has its channels on another axis"):
        assert mhex.attach(model, CLASSES).names == ("units.0",)
    with pytest.raises(ArgumentError, match=r"units\.1: has its channels"):
        mhex.attach(Net(Unit(), unit), CLASSES, where=["units.1"])


def test_sequence_first_attention_is_refused():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.mlp = nn.MultiheadAttention(WIDTH, 2), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            x = x + self.attention(x, x, x)[0]
            return x + self.mlp(x)

    with pytest.raises(UnsupportedModelError, match="batch_first=False"):
        mhex.attach(nn.Sequential(Block()), CLASSES)


def test_sizes_that_do_not_fit_are_noticed():
    model = Net(Unit()).eval()
    scaffold = mhex.attach(model, CLASSES)
    own = model(images())
    scaffold.heads["units.0"].channels_last = True  # a wrong guess that the sizes overrule
    assert torch.equal(model(images()), own)
    scaffold.heads["units.0"].channels = 7
    with pytest.raises(CaptureError, match=r"7 channels .*\(B, H, W, C\)"):
        model(images())


MAPS, TOKENS, LAST_AXIS = Channels(4, 1, 4), Channels(4, 2, 3), Channels(4, -1, None)


@pytest.mark.parametrize(
    ("channels", "operation", "wanted"),
    [
        (MAPS, lambda x: x.permute(0, 2, 3, 1), Channels(4, 3, 4)),
        (MAPS, lambda x: torch.permute(x, (0, 2, 3, 1)), Channels(4, 3, 4)),
        (LAST_AXIS, lambda x: x.permute(0, 3, 1, 2), MAPS),
        (LAST_AXIS, lambda x: x.transpose(1, 2), Channels(4, 1, 3)),
        (LAST_AXIS, lambda x: x.transpose(2, 3), Channels(4, 2, 4)),
        (LAST_AXIS, lambda x: x.transpose(0, 1), LAST_AXIS),
        (LAST_AXIS, lambda x: x.transpose(-1, -2), Channels(4, 1, 3)),
        (LAST_AXIS, lambda x: x.mT, Channels(4, 1, 3)),
        (LAST_AXIS, lambda x: x.movedim(3, 1), MAPS),
        (MAPS, lambda x: torch.movedim(x, 1, -1), Channels(4, 3, 4)),
        (MAPS, lambda x: x[:, 1:], MAPS),
        (MAPS, lambda x: x[:, None], Channels(4, 2, 5)),
        (MAPS, lambda x: x[:, :, None], Channels(4, 1, 5)),
        (LAST_AXIS, lambda x: x[:, None, None, :], Channels(4, 3, 4)),
        (MAPS, lambda x: x[0], MAPS),  # of a tuple
        (MAPS, lambda x: x[..., None], None),
        (MAPS, lambda x: x.unsqueeze(1), Channels(4, 2, 5)),
        (MAPS, lambda x: x.unsqueeze(-1), Channels(4, 1, 5)),
        (LAST_AXIS, lambda x: x.unsqueeze(1), None),
        (MAPS, lambda x: x.flatten(2), Channels(4, 1, 3)),
        (MAPS, lambda x: x.flatten(1), None),
        (TOKENS, lambda x: x.flatten(0, 1), Channels(4, 1, 2)),
        (LAST_AXIS, lambda x: x.flatten(0, 1), LAST_AXIS),
        (LAST_AXIS, lambda x: x.flatten(1), None),
        (Channels(4, 5, 6), lambda x: x.reshape(2, 3, 5, 4), Channels(4, 3, 4)),
        (Channels(4, 1, 3), lambda x: x.reshape(2, 4, 3, 5), MAPS),
        (MAPS, lambda x: x.mean(1), None),
    ],
)
def test_moving_axes(channels, operation, wanted):
    _, node, _ = fx.symbolic_trace(operation).graph.nodes
    assert moved_by(node, channels) == wanted


def test_which_layouts_serve():
    assert all(c.usable for c in (Channels(4, 1, 4), Channels(4, 3, 4), Channels(4, 2, 3), Channels(4, -1, None)))
    assert not any(c.usable for c in (Channels(4, 1, 3), Channels(4, 1, 5), Channels(4, 4, 5), Channels(4, 2, 4)))


def test_an_old_file_of_heads_still_loads():
    """It was written before the layout was known, which does not belong to a file: the model tells it."""
    bundle = mhex.load("zoo:pets-mhex-resnet10t")
    assert bundle.model is not None
    assert {len(mhex.Scaffold(bundle.model).names)} == {4}
