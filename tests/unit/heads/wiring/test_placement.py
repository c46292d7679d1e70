"""Where heads can be placed, where not, and what the user is told."""

import warnings

import pytest
import timm
import torch
import transformers
from torch import nn

import mhex
from mhex.errors import ArgumentError, CaptureError, MhexWarning, UnsupportedModelError
from mhex.heads.wiring.residual import survey
from support.residual_units import CLASSES, WIDTH, Net, TextNet, Unit, images

pytestmark = pytest.mark.filterwarnings("ignore:The heads have:mhex.errors.MhexWarning")


class Flagged(Unit):
    """Cannot be traced: its way depends on an argument that is no tensor."""

    def forward(self, x, flag=False):
        y = self.body(x)
        if flag:
            y = y * 2
        return x + y


def test_units_that_cannot_be_traced_are_named():
    with pytest.warns(MhexWarning, match=r"units\.0: cannot be traced \(.*; units\.2: cannot") as said:
        scaffold = mhex.attach(Net(Flagged(), Unit(), Flagged()), CLASSES)
    assert scaffold.names == ("units.1",)
    assert len([w for w in said if "get no head" in str(w.message)]) == 1
    assert said[0].filename == __file__


class Cutting(nn.Module):
    """Goes on with the first of its tokens."""

    def __init__(self, count):
        super().__init__()
        self.body, self.count = nn.Linear(WIDTH, WIDTH), count

    def forward(self, x):
        x = x[:, : self.count]
        return x + self.body(x)


def test_several_tokens_are_positions_of_the_input_and_a_single_one_is_not():
    assert [junction.name for junction in survey(TextNet(Cutting(3))).junctions] == ["block"]
    with pytest.raises(UnsupportedModelError, match="Cutting: adds tensors whose positions are not those of its input"):
        survey(TextNet(Cutting(1)))


class Narrowing(nn.Module):
    """Shrinks maps along one side alone."""

    def __init__(self, stride):
        super().__init__()
        self.skip = nn.Conv2d(WIDTH, WIDTH, 1, stride)
        self.body = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, stride, 1), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 1))

    def forward(self, x):
        return self.skip(x) + self.body(x)


def test_a_shortcut_that_shrinks_one_side_is_a_downsampling():
    model = Net(Narrowing((1, 1)), Narrowing((2, 1)), Narrowing((1, 2)), Unit())
    assert mhex.attach(model, CLASSES, where="downsample").names == ("units.1", "units.2")


def test_names_that_were_asked_for_are_not_warned_about():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mhex.attach(Net(Flagged(), Unit()), CLASSES, where=["units.1"])
    with pytest.raises(ArgumentError, match=r"No head can be placed on units\.0: cannot be traced"):
        mhex.attach(Net(Flagged(), Unit()), CLASSES, where=["units.0", "units.1"])


@pytest.mark.parametrize("kind", ["Bert", "ViT", "Dinov2", "DistilBert", "Llama"])
def test_what_is_no_unit_is_not_warned_about(kind):
    """Embeddings, attention and whole models add, cannot be traced, and carry no residual connection."""
    tasks = {"ViT": "ForImageClassification", "Dinov2": "ForImageClassification"}
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    with torch.device("meta"):
        model = getattr(transformers, kind + tasks.get(kind, "ForSequenceClassification"))(config)
    assert survey(model).left_out == {}


def test_units_that_have_a_head_are_not_warned_about():
    """The first branch of a ResMLP block mixes tokens past layers that do not tell C; its second carries the head."""
    with torch.device("meta"):
        seen = survey(timm.create_model("resmlp_12_224"))
    assert [j.name for j in seen.junctions] == [f"blocks.{i}" for i in range(12)]
    assert seen.left_out == {}


# --- units that cannot serve ---------------------------------------------------------------------------------------


def siglip():
    return timm.create_model(
        "vit_base_patch16_siglip_224", img_size=32, embed_dim=16, num_heads=2, depth=2, num_classes=CLASSES
    ).eval()


def test_attention_pooling_is_left_out():
    model, x = siglip(), torch.randn(2, 3, 32, 32)
    with pytest.warns(MhexWarning, match="attn_pool: adds tensors whose positions"):
        scaffold = mhex.attach(model, CLASSES)
    assert scaffold.names == ("blocks.0", "blocks.1")
    assert mhex.explain(model, x, method="mhex").scores.shape == (2, 2, 2)


def test_pooling_with_a_learned_query_in_hugging_face_is_left_out():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(image_size=32, patch_size=8, **sizes))
    seen = survey(model)
    assert [name for name, why in seen.left_out.items() if "positions" in why or "batch_first" in why] == ["head"]
    assert all("encoder" in j.unit for j in seen.junctions)


@pytest.mark.parametrize("name", ["cait_xxs24_224", "crossvit_tiny_240"])
def test_class_tokens_alone_are_left_out(name):
    with torch.device("meta"):
        seen = survey(timm.create_model(name))
    assert seen.left_out
    assert all("positions" in why for why in seen.left_out.values())
    assert not any(part in j.unit for j in seen.junctions for part in ("token_only", "fusion"))


def test_patches_that_are_folded_into_the_batch_are_refused():
    class Folding(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Unit()

        def forward(self, x):
            return self.inner(x.reshape(2 * x.shape[0], WIDTH, -1, 6)).reshape(x.shape)

    model = Net(Unit(), Folding()).eval()
    mhex.attach(model, CLASSES)
    with pytest.raises(CaptureError, match=r"Expected 3 samples .* units\.1\.inner.*\(6, 8, 3, 6\).*where=\[\.\.\.\]"):
        model(images(3))


@pytest.mark.slow
def test_mobilevit_folds_patches_into_the_batch():
    model = timm.create_model("mobilevit_xxs", num_classes=CLASSES).eval()
    scaffold = mhex.attach(model, CLASSES)
    with pytest.raises(CaptureError, match=r"Expected 2 samples .* stages\.2\.1\.transformer\.0.*where=\[\.\.\.\]"):
        model(torch.randn(2, 3, 32, 32))
    names = [name for name in scaffold.names if "transformer" not in name]
    scaffold.detach()
    mhex.attach(model, CLASSES, where=names)
    model(torch.randn(2, 3, 32, 32))


def test_a_layer_that_is_shared_is_refused():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.AlbertConfig(vocab_size=50, embedding_size=8, num_labels=CLASSES, **sizes)
    model = transformers.AlbertForSequenceClassification(config).eval()
    mhex.attach(model, CLASSES)
    with pytest.raises(CaptureError, match=r"albert_layers\.0 ran twice .* where=\[\.\.\.\]"):
        model(torch.randint(3, 50, (2, 5)))


def test_replays_on_copies_of_the_batch_are_not_refused():
    """Methods run the last block again on several copies; only the user's own calls are held to their samples."""
    model = Net(Unit()).eval()
    scaffold = mhex.attach(model, CLASSES)
    x = images()
    folding = model.units[0].register_forward_pre_hook(lambda _, args: (args[0].repeat(3, 1, 1, 1),))
    with pytest.raises(CaptureError, match="Expected 2 samples"):
        model(x)
    with scaffold.heads.aside():
        assert model(x).shape == (6, CLASSES)
    with pytest.raises(CaptureError, match="Expected 2 samples"):
        model(x)
    folding.remove()
    model(x)


# --- GPT-2 ---------------------------------------------------------------------------------------------------------


def gpt2(implementation):
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=50, num_labels=CLASSES, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, n_positions=16, attn_implementation=implementation,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.GPT2ForSequenceClassification(config).eval()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_heads_fit_both_connections_of_gpt2(implementation):
    model = gpt2(implementation)
    assert survey(model).left_out == {}  # its attention cannot be traced, and is a part of a unit
    ids = torch.randint(3, 50, (2, 6))
    with torch.no_grad():
        before = model(ids).logits
        scaffold = mhex.attach(model, CLASSES, where="attention+mlp")
        assert torch.equal(model(ids).logits, before)
    assert scaffold.names == tuple(f"transformer.h.{i}{part}" for i in range(2) for part in (":attention", ""))
    assert set(scaffold.settings.channels) == {16}
    assert scaffold.settings.gate_target == "shortcut"
    for block in scaffold.heads.blocks:
        nn.init.normal_(block.w1.weight)
    model(ids, attention_mask=torch.ones_like(ids))
    wanted = list(scaffold.head_logits.values())
    for left in (True, False):
        pad = torch.zeros(2, 3, dtype=torch.long)
        order = (lambda tokens, pads: (pads, tokens)) if left else (lambda tokens, pads: (tokens, pads))
        mask = torch.cat(order(torch.ones_like(ids), pad), 1)
        model(torch.cat(order(ids, pad), 1), attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp_min(0))
        got = list(scaffold.head_logits.values())
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(got, wanted, strict=True))
