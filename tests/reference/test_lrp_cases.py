"""Relevance propagation where it is easily wrong: scores of either sign, layouts, views, masks, forms of a call."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mhex
from mhex.errors import ArgumentError, CaptureError, MhexWarning, UnsupportedModelError
from support.cases import assert_same
from support.models import FAMILIES, call, enliven

LRP = ("lrp", "conservative-lrp", "attnlrp", "abslrp")


class Net(nn.Module):
    """Two convolutions and a head, with something of one's own in between."""

    def __init__(self, between: Any, classes: int = 3) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head, self.between = nn.Linear(4 * 36, classes), between

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.between(self.first(x))).flatten(1))


def net(between: Any, classes: int = 3) -> nn.Module:
    return enliven(Net(between, classes)).double().eval()


def pictures(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("options", [{}, {"rule": "gamma"}], ids=["epsilon", "gamma"])
def test_negative_logits_do_not_turn_the_map(options: dict[str, Any]) -> None:
    """Scores above 0 speak for the class: without biases they sum to the sign of its logit."""
    model = net(F.relu)
    for module in (model.first, model.second, model.head):
        nn.init.zeros_(module.bias)
    e = mhex.explain(model, pictures(), "lrp", target=[0, 1, 2], input_rule="same", epsilon=0, **options)
    assert bool((e.logits < 0).any())
    assert bool((e.logits > 0).any())
    assert_same(e.scores.sum((2, 3)), e.logits.sign(), "lrp", 1e-9)


@pytest.mark.parametrize("name", ["tv_resnet", "timm_vit"])
def test_a_contrast_of_two_classes_is_that_of_their_maps(name: str) -> None:
    """Shares of both signs are handed down by themselves: together, renormalised sums would let them vanish."""
    family = FAMILIES[name]
    model, x = family.model(), family.inputs(2)
    logits = call(model, x).detach()
    pairs = [(a, b) for a in range(7) for b in range(a) if bool((logits[:, a] * logits[:, b] > 0).all())]
    a, b = pairs[0]  # the shares of such a pair have both signs
    contrast = mhex.explain(model, x, "lrp", target=lambda y: y[:, a] - y[:, b])
    maps = mhex.explain(model, x, "lrp", target=[a, b]).scores * logits[:, [a, b], None, None].abs()
    size = logits[:, [a, b], None, None].abs().sum(1)
    assert_same(contrast.scores, (maps[:, 0] - maps[:, 1]) / size, "lrp", 1e-9)


@pytest.mark.parametrize("method", ["lrp", "partial-lrp", "transformer-attribution"])
def test_a_cosine_concept_has_a_map(method: str) -> None:
    """Its shares sum to 0 in every sample."""
    family = FAMILIES["timm_vit"]
    concept = mhex.Concept(torch.randn(32, dtype=torch.float64)).compared_by("cosine")
    double = mhex.explain(family.model(), family.inputs(2), method, target=concept)
    single = mhex.explain(family.model(torch.float32), family.inputs(2, torch.float32), method, target=concept)
    assert float(double.scores.abs().max()) > 1e-4
    pair = torch.stack([double.scores.flatten(), single.scores.double().flatten()])
    assert float(torch.corrcoef(pair)[0, 1]) > 0.99, "no rounding"


def test_maps_of_a_vit_do_not_depend_on_the_stabiliser() -> None:
    """Of 50 000 sums in each block some are as small as it; the floor of divisors is larger."""
    timm = pytest.importorskip("timm", reason="the network comes from timm")
    model = timm.models.VisionTransformer(img_size=64, patch_size=8, embed_dim=128, depth=6, num_heads=4, num_classes=5)
    model = enliven(model).double().eval()
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def spread(**options: Any) -> float:
        """The largest difference between maps of two stabilisers, beside the largest value."""
        one, two = (mhex.explain(model, x, "lrp", 1, epsilon=e, **options).scores for e in (1e-6, 1e-9))
        return float(((one - two).flatten(1).abs().amax(1) / two.flatten(1).abs().amax(1)).max())

    assert spread(rule="alphabeta") < 1e-3
    assert spread(rule="alphabeta", floor=0.0) > 0.02
    single = mhex.explain(model.float(), x.float(), "lrp", 1, rule="alphabeta").scores.double()
    wanted = mhex.explain(model.double(), x, "lrp", 1, rule="alphabeta").scores
    assert_same(single, wanted, "lrp", 1e-3)


class Sequence(nn.Module):
    """A Transformer that lays its tokens out as (N, B, D) from the position embedding on."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.patches, self.place = nn.Conv2d(3, 8, 3, 3), nn.Parameter(torch.randn(4, 1, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2)
        if self.batch_first:
            return self.head(self.encoder(tokens.mT + self.place.transpose(0, 1)).mean(1))
        return self.head(self.encoder(tokens.permute(2, 0, 1) + self.place).mean(0))


@pytest.mark.parametrize("method", LRP)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_sequences_first_equal_batches_first(method: str, count: int) -> None:
    first, second = (enliven(Sequence(way)).double().eval() for way in (False, True))
    second.load_state_dict(first.state_dict())
    got, wanted = (mhex.explain(model, pictures(count), method, target=1) for model in (first, second))
    assert_same(got.scores, wanted.scores, method, 1e-9)
    for name in wanted.diagnostics:
        assert torch.allclose(got.diagnostics[name], wanted.diagnostics[name], atol=1e-9), name


def test_as_many_samples_as_tokens_cannot_be_told_apart() -> None:
    model = enliven(Sequence(False)).double().eval()
    with pytest.raises(mhex.errors.CaptureError, match="Expected another batch size than 4"):
        mhex.explain(model, pictures(4), "lrp", target=1)


def _stale_view(x: Tensor) -> Tensor:
    part = x.flatten(1)
    x.relu_()
    return part.view_as(x) * 1.0


@pytest.mark.parametrize("method", ["lrp", "conservative-lrp"])
def test_views_of_what_is_written_later_are_refused(method: str) -> None:
    with pytest.raises(UnsupportedModelError, match="writing into a tensor of which a view is read later"):
        mhex.explain(net(_stale_view), pictures(), method)


BENT = {
    "selu": F.selu,
    "softplus": F.softplus,
    "clamp": lambda x: x.clamp(0, 6),
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
}


@pytest.mark.parametrize("name", BENT)
def test_guided_backprop_refuses_other_activations(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="it is defined for ReLU networks, and this one uses"):
        mhex.explain(net(BENT[name]), pictures(), "guided-backprop")


def test_guided_backprop_takes_gates_beside_relu() -> None:
    model = net(lambda x: F.relu(x) * torch.sigmoid(x.mean((2, 3), keepdim=True)))
    assert float(mhex.explain(model, pictures(), "guided-backprop").scores.abs().max()) > 0


class TokenNorm(nn.Module):
    """A batch norm over tokens after a linear layer: its channels are the tokens."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(6, 6), nn.BatchNorm1d(tokens), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.inner(x[:, 0])).relu().sum(1))


def test_a_batch_norm_of_tokens_is_not_folded_into_a_linear_layer() -> None:
    model = enliven(TokenNorm(6)).double().eval()
    x = pictures()
    e = mhex.explain(model, x, "conservative-lrp", target=1)
    (gradient,) = torch.autograd.grad(model(leaf := x.clone().requires_grad_())[:, 1].sum(), leaf)
    assert_same(e.scores, (x * gradient).sum(1), "conservative-lrp", 1e-9)


class Masked(nn.Module):
    """Attention written out, with a mask of minus infinity that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.inner(x[:, 0])
        mask = torch.full((6, 6), -torch.inf, dtype=x.dtype).triu(1)
        return self.head((tokens @ tokens.mT + mask).softmax(-1).matmul(tokens).sum(1))


@pytest.mark.parametrize("method", ["lrp", "attnlrp"])
def test_infinite_masks_take_nothing(method: str) -> None:
    options = {"attention": "shared"} if method == "attnlrp" else {}
    e = mhex.explain(enliven(Masked()).double().eval(), pictures(), method, **options)
    assert all(bool(value.isfinite().all()) for value in (e.scores, *e.diagnostics.values()))


def _padded(model: nn.Module, method: str) -> tuple[Tensor, Tensor]:
    """Scores of a text alone, and with padding after it."""
    ids, rest = torch.tensor([[0, 7, 9, 12, 8, 2]]), torch.ones(1, 3, dtype=torch.long)
    short = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    long = {
        "input_ids": torch.cat([ids, rest], 1),
        "attention_mask": torch.cat([torch.ones_like(ids), torch.zeros_like(rest)], 1),
    }
    one, other = (mhex.explain(model, text, method, 1).scores for text in (short, long))
    return one, other[:, : ids.shape[1]]


@pytest.mark.parametrize("method", LRP)
@pytest.mark.parametrize("name", ["mpnet", "deberta"])
def test_padding_hidden_by_large_numbers_takes_nothing(name: str, method: str) -> None:
    """Their masks are the least number that there is, added or filled in, and not minus infinity."""
    import transformers

    sizes = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_labels": 3, "pad_token_id": 1}
    if name == "mpnet":
        model = transformers.MPNetForSequenceClassification(transformers.MPNetConfig(**sizes))
    else:
        places = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 8}
        model = transformers.DebertaV2ForSequenceClassification(transformers.DebertaV2Config(**sizes, **places))
    alone, padded = _padded(enliven(model).double().eval(), method)
    assert_same(padded, alone, method, 1e-9)


LEAST = torch.finfo(torch.float64).min
SEEN = torch.ones(6, 6, dtype=torch.bool).tril()


def _attending(kind: str) -> Any:
    """Attention over six tokens of width four, with the same mask in several forms."""

    def between(x: Tensor) -> Tensor:
        q = k = v = x.flatten(2).mT.reshape(len(x), 6, 6, 4).mean(1)
        mask = torch.zeros(6, 6, dtype=x.dtype)
        if kind == "fused":
            z = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], attn_mask=SEEN)[:, 0]
        elif kind == "fused, finite":
            mask = mask.masked_fill(~SEEN, LEAST)
            z = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], attn_mask=mask)[:, 0]
        else:
            least = {"infinite": -torch.inf, "finite": LEAST, "hundred": -100.0}[kind]
            z = (q @ k.mT * 0.5 + mask.masked_fill(~SEEN, least)).softmax(-1) @ v
        return x + z.mT.reshape(len(x), 4, 1, 6)

    return between


@pytest.mark.parametrize("method", ["abslrp", "lrp"])
@pytest.mark.parametrize("kind", ["fused, finite", "finite", "hundred"])
def test_masks_of_all_kinds_are_the_same(kind: str, method: str) -> None:
    like = "fused" if kind.startswith("fused") else "infinite"  # written out, scaling is an operation of its own
    got, wanted = (mhex.explain(net(_attending(one)), pictures(), method, 1).scores for one in (kind, like))
    assert_same(got, wanted, method, 1e-12)


@pytest.mark.parametrize("method", ["abslrp", "lrp"])
def test_a_mask_that_hides_nothing_changes_nothing(method: str) -> None:
    def attention(x: Tensor, *mask: Tensor) -> Tensor:
        tokens = x.flatten(2).mT
        logits = tokens @ tokens.mT
        assert float(logits.detach().min()) < 0
        for one in mask:
            logits = logits + one
        return x + (logits.softmax(-1) @ tokens).mT.view_as(x)

    plain = mhex.explain(net(attention), pictures(), method, 1).scores
    zeros = torch.zeros(36, 36, dtype=torch.float64)
    assert_same(mhex.explain(net(lambda x: attention(x, zeros)), pictures(), method, 1).scores, plain, method, 1e-12)


def test_gamma_without_a_stabiliser_where_there_is_nothing() -> None:
    model = net(F.relu)
    for module in (model.first, model.second, model.head):
        nn.init.zeros_(module.bias)
    x = pictures()
    x[..., :4] = 0
    e = mhex.explain(model, x, "lrp", rule="gamma", epsilon=0, input_rule="same")
    assert float(e.scores[..., :3].abs().max()) == 0 < float(e.scores.abs().max())


POSITIVE = torch.ones(1, dtype=torch.bool)
FORMS = {
    "cat": (lambda x: torch.cat([x, x], axis=1)[:, :4], lambda x: torch.cat([x, x], 1)[:, :4]),
    "add": (lambda x: torch.add(x, other=x), lambda x: x + x),
    "softmax": (lambda x: torch.softmax(input=x, dim=1) + x, lambda x: x.softmax(1) + x),
    "sum": (lambda x: torch.sum(input=x, dim=1, keepdim=True) + x, lambda x: x.sum(1, keepdim=True) + x),
    "where": (lambda x: torch.where(condition=POSITIVE, input=POSITIVE, other=POSITIVE) * x, lambda x: x * POSITIVE),
    "addcmul by name": (lambda x: torch.addcmul(x, tensor1=x, tensor2=x), lambda x: x + x * x),
    "addcmul": (lambda x: torch.addcmul(x, x, x, value=0.5), lambda x: x + (x * x) * 0.5),
}


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "abslrp"])
@pytest.mark.parametrize("name", FORMS)
def test_arguments_by_name(name: str, method: str) -> None:
    one, other = (mhex.explain(net(form), pictures(), method).scores for form in FORMS[name])
    assert_same(one, other, method, 1e-12)


def _decoders() -> dict[str, Any]:
    """Text classifiers whose GELU is written out in small functions."""
    from transformers import AlbertConfig, AlbertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification

    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "num_labels": 3}
    gpt2 = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=4, **special)
    sizes = {"embedding_size": 16, "hidden_size": 32, "intermediate_size": 48}
    albert = AlbertConfig(vocab_size=50, num_hidden_layers=2, num_attention_heads=4, **sizes, **special)
    return {"gpt2": (GPT2ForSequenceClassification, gpt2), "albert": (AlbertForSequenceClassification, albert)}


def _decoder(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    kind, config = _decoders()[name]
    ids = torch.randint(3, 50, (2, 7), generator=torch.Generator().manual_seed(4))
    real = torch.ones_like(ids)
    ids[1, 5:] = real[1, 5:] = 0
    return enliven(kind(config)).double().eval(), {"input_ids": ids, "attention_mask": real}


@pytest.mark.parametrize("name", ["gpt2", "albert"])
@pytest.mark.parametrize("method", [*LRP, "partial-lrp", "transformer-attribution"])
def test_an_activation_that_is_written_out_is_one_operation(method: str, name: str) -> None:
    """As with the same function of torch, which is one."""
    model, texts = _decoder(name)
    found = mhex.explain(model, texts, method, target=[0, 2])
    written_out = [n for n, m in model.named_modules() if type(m).__name__ == "NewGELUActivation"]
    assert written_out
    assert all("forward" not in vars(model.get_submodule(n)) for n in written_out)
    for place in written_out:
        model.set_submodule(place, nn.GELU(approximate="tanh"))
    assert_same(found.scores, mhex.explain(model, texts, method, target=[0, 2]).scores, method, 1e-8)


@pytest.mark.parametrize("last", [False, True])
def test_padding_in_place_of_a_word_does_not_move_the_read_out(last: bool) -> None:
    """GPT-2 reads the last token that is no padding by its id: it must stay where it is."""
    model, texts = _decoder("gpt2")
    place = 6 if last else 2
    e = mhex.explain(
        model, {**texts, "special_tokens_mask": torch.zeros_like(texts["input_ids"])}, "occlusion", target=1
    )
    assert e.options["fill"] == 0
    words = model.transformer.wte(texts["input_ids"])
    words[0, place] = model.transformer.wte.weight[0]
    scores = model.score(model.transformer(inputs_embeds=words, attention_mask=texts["attention_mask"])[0])
    assert_same(e.scores[0, place], e.logits[0, 1] - scores[0, 6, 1].detach(), "occlusion", 1e-9)


def test_relevance_that_is_mostly_lost_is_told() -> None:
    """A large stabiliser takes most of it; with a small one there is nothing to tell."""
    model = net(F.relu)
    with pytest.warns(MhexWarning, match="times the relevance was lost or made on the way"):
        e = mhex.explain(model, pictures(), "lrp", epsilon=50.0)
    assert float(e.diagnostics["conservation_gap"].max()) > 0.5
    with pytest.raises(CaptureError, match=r"conserved up to 0\.05"):
        mhex.explain(model, pictures(), "lrp", epsilon=50.0, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MhexWarning)
        mhex.explain(model, pictures(), "lrp", strict=True)


def _unseen(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = F.relu(x).mean()
    return F.relu(x) * scale


def _part_in_place(x: Tensor) -> Tensor:
    x = x * 1.0
    x[:, :2].relu_()
    return x


def _whole_in_place(x: Tensor) -> Tensor:
    x = x * 1.0
    x.flatten(1).relu_()
    return x


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: torch.relu(input=x), F.relu),
        (_unseen, lambda x: F.relu(x) * float(F.relu(x).mean())),
        (_whole_in_place, F.relu),
        (lambda x: (x * 1.0).relu_(), F.relu),
    ],
    ids=["by name", "without a graph", "by a view of the whole", "in place"],
)
def test_guided_backprop_sees_every_form_of_a_relu(one: Any, other: Any) -> None:
    x = pictures(1)
    found = mhex.explain(net(one), x, "guided-backprop", 0).scores
    wanted = mhex.explain(net(other), x, "guided-backprop", 0).scores
    assert_same(found, wanted, "guided-backprop", 1e-12)
    assert not torch.allclose(wanted, mhex.explain(net(other), x, "input-x-gradient", 0).scores)


@pytest.mark.parametrize("between", [_part_in_place, lambda x: F.gelu(input=x), lambda x: (x * 1.0).clamp_(min=0)])
def test_guided_backprop_refuses_what_it_cannot_guide(between: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"into a part of a tensor|gelu|clamp_"):
        mhex.explain(net(between), pictures(1), "guided-backprop", 0)


def test_a_gradient_that_the_model_itself_spoils_is_told() -> None:
    def spoil(x: Tensor) -> Tensor:
        y = torch.sigmoid(x)
        y += 1
        return y

    with pytest.raises(CaptureError, match="writes in place into what its own gradient needs"):
        mhex.explain(net(spoil), pictures(1), "input-x-gradient", 0)


class Patches(nn.Module):
    """Patches through a linear layer, of which few are read."""

    def __init__(self, read: int) -> None:
        super().__init__()
        self.embed, self.head, self.read = nn.Linear(12, 8), nn.Linear(8, 3), read

    def forward(self, x: Tensor) -> Tensor:
        cut = x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        return self.head(F.relu(self.embed(cut))[:, : self.read].mean(1))


def test_the_box_rule_looks_at_the_whole_image() -> None:
    """Also where relevance reaches few patches: its least and largest value may lie in the others."""
    model = enliven(Patches(2)).double().eval()
    x = pictures(1)
    x[0, 0, 5, 5], x[0, 1, 5, 4] = 9.0, -7.0  # in the last patch, which is not read
    found = mhex.explain(model, x, "lrp", 0, epsilon=0.0).scores[0]
    patches = x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)[0, :2]  # (2, 12)
    hidden = F.relu(model.embed(patches))
    sign = float(model.head(hidden.mean(0))[0].sign())
    shares = hidden * model.head.weight[0] / 2 / model.head(hidden.mean(0))[0] * sign  # of the score, by epsilon
    weight = model.embed.weight
    low, high = x.min(), x.max()
    z = patches[:, None] * weight - low * weight.clamp_min(0) - high * weight.clamp_max(0)  # (2, 8, 12)
    wanted = (z / z.sum(2, keepdim=True) * shares[..., None]).sum(1)
    for n, (top, left) in enumerate(((0, 0), (0, 2))):
        assert_same(found[top : top + 2, left : left + 2], wanted[n].view(3, 2, 2).sum(0).detach(), "lrp", 1e-9)


def test_a_dead_network_has_no_relevance() -> None:
    model = enliven(Patches(2)).double().eval()
    nn.init.constant_(model.embed.bias, -1e6)
    e = mhex.explain(model, pictures(1), "lrp", 0)
    assert float(e.scores.abs().max()) == 0


def test_words_are_hidden_in_encoder_and_decoder() -> None:
    """Where the embedding is used twice, ids are exchanged, and not that of the end, which the model looks for."""
    from transformers import T5Config, T5ForSequenceClassification

    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 2, "vocab_size": 40}
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "num_labels": 3}
    model = enliven(T5ForSequenceClassification(T5Config(**sizes, **special))).double().eval()
    ids = torch.tensor([[5, 9, 12, 7, 1]])
    none = torch.tensor([[0, 0, 0, 0, 1]])
    e = mhex.explain(model, {"input_ids": ids, "special_tokens_mask": none}, "occlusion", 1, fill=3)
    changed = ids.clone()
    changed[0, 2] = 3
    assert_same(e.scores[0, 2], e.logits[0, 1] - model(input_ids=changed).logits[0, 1].detach(), "occlusion", 1e-9)


def test_biases_that_take_more_than_there_is_are_told() -> None:
    model, x = net(F.relu), pictures(1)
    nn.init.zeros_(model.head.bias)
    model.head.bias.data[0] = -1.5 * model(x)[0, 0].detach()  # three times the score that is left, and more
    with pytest.warns(MhexWarning, match="took .* times the relevance that there was"):
        mhex.explain(model, x, "lrp", 0)


@pytest.mark.parametrize(("option", "rule"), [({"gamma": 5.0}, "gamma"), ({"alpha": 3.0}, "alphabeta")])
def test_options_of_another_rule_are_refused(option: dict[str, float], rule: str) -> None:
    with pytest.raises(ArgumentError, match=f"Expected rule={rule!r}"):
        mhex.explain(net(F.relu), pictures(), "lrp", **option)


@pytest.mark.parametrize("method", ["occlusion", "integrated-gradients", "rise"])
def test_a_decoder_without_padding_is_asked_about_one_text_at_a_time(method: str) -> None:
    """It refuses several, and the user gave one; the result is that of the same model with a padding token."""
    model, texts = _decoder("gpt2")
    one = {name: value[:1] for name, value in texts.items()}
    options = {"n": 20} if method == "rise" else {"steps": 5} if method == "integrated-gradients" else {}
    options |= {} if method == "integrated-gradients" else {"fill": 4}
    wanted = mhex.explain(model, one, method, 1, **options).scores
    model.config.pad_token_id = None
    with pytest.raises(ValueError, match="padding token"):
        model(**texts)
    assert_same(mhex.explain(model, one, method, 1, **options).scores, wanted, method, 1e-9)


def test_special_tokens_by_the_configuration() -> None:
    """GPT-2 has none but those that begin and end texts: its first and last words are words."""
    model, _ = _decoder("gpt2")
    ids = torch.tensor([[7, 9, 2, 7, 11]])  # 2 ends texts
    e = mhex.explain(model, {"input_ids": ids}, "conservative-lrp", 1)
    assert e.scored.tolist() == [[True, True, False, True, True]]
