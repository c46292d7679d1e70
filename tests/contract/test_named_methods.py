"""Every method that a refusal names as able explains the model, however awkward it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mhex
from mhex.capture import find_anatomy
from mhex.errors import MhexError
from mhex.inputs import prepare
from mhex.judge.plan import method_runs
from support.cases import METHODS, named_methods, quick

IMAGES = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
IDS = torch.arange(12).view(2, 6)


class Doubled(torch.autograd.Function):
    """An operation of somebody's own that has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError("nobody wrote it")


class Convolution(nn.Module):
    """A convolution, and somebody's own way from its maps to what the classifier reads."""

    def __init__(self, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pool, self.convolution, self.classifier = pool, nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.pool(self.convolution(x).relu()).mean((2, 3)))
        return scores


class Frozen(Convolution):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(x)


class Words(nn.Module):
    """A text classifier that is given ids alone: by an LSTM, a bag of words, or one number for each word."""

    def __init__(self, layer: str, padding: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = layer
        self.words = nn.EmbeddingBag(30, 8) if layer == "bag" else nn.Embedding(30, 8, padding_idx=padding)
        self.lstm = nn.LSTM(8, 8, batch_first=True) if layer == "lstm" else None
        self.classifier = nn.Linear(30 if layer == "counts" else 8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        states = F.one_hot(input_ids, 30).float().mean(1) if self.layer == "counts" else self.words(input_ids)
        if self.lstm is not None:
            states = self.lstm(states)[0][:, -1]
        scores: Tensor = self.classifier(states)
        return scores


class Rows(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.classifier = nn.LSTM(24, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.lstm(x.transpose(1, 2).flatten(2))[0][:, -1])
        return scores


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "plain": (lambda: Convolution(nn.Identity()), IMAGES),
    "detached": (lambda: Convolution(Tensor.detach), IMAGES),
    "no_grad": (lambda: Frozen(nn.Identity()), IMAGES),
    "signs": (lambda: Convolution(lambda x: (x > 0).float()), IMAGES),
    "steps": (lambda: Convolution(lambda x: (x * 8).floor()), IMAGES),
    "through numpy": (lambda: Convolution(lambda x: torch.from_numpy(x.detach().numpy())), IMAGES),
    "own function": (lambda: Convolution(Doubled.apply), IMAGES),
    "rows": (Rows, IMAGES),
    "stock layers": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), IMAGES),
    "quantised": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3)), IMAGES),
    "lstm": (lambda: Words("lstm"), IDS),
    "lstm with padding": (lambda: Words("lstm", padding=0), IDS),
    "bag": (lambda: Words("bag"), IDS),
    "counts": (lambda: Words("counts"), IDS),
}


def model_of(name: str) -> tuple[nn.Module, Tensor]:
    build, inputs = MODELS[name]
    model = build().eval()
    if name == "quantised":
        model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    return model, inputs


def outcomes(model: nn.Module, inputs: Tensor, **more: Any) -> dict[str, str]:
    """For each method nothing if it explained the model, else what it said."""
    said = {}
    for method in METHODS:
        options = quick(method, {"input_ids": inputs} if inputs.dim() == 2 else inputs)
        options = {name: value for name, value in options.items() if name not in ("fill", "patch")}
        options |= {name: value for name, value in more.items() if name in METHODS[method].options}
        try:
            mhex.explain(model, inputs, method, **options)
            said[method] = ""
        except MhexError as error:
            said[method] = str(error)
    return said


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_every_method_that_a_refusal_names_explains_the_model(name: str) -> None:
    model, inputs = model_of(name)
    said = outcomes(model, inputs)
    able = {method for method, message in said.items() if not message}
    refusals = [message for message in said.values() if "Methods that can" in message]
    assert refusals
    for message in refusals:
        sure, unsure = named_methods(message)
        assert sure <= able
        assert able <= sure | unsure, "none is forgotten"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["lstm", "counts"])
def test_methods_that_hide_words_can_if_the_token_is_named(name: str) -> None:
    model, inputs = model_of(name)
    message = outcomes(model, inputs)["gae"]
    assert "Those that can if tokenizer=, or fill=, says by which token they hide words: occlusion, rise" in message
    said = outcomes(model, inputs, fill=29)
    assert {said["occlusion"], said["rise"]} == {""}


def test_evaluate_and_recommend_leave_them_out() -> None:
    """Of all methods those that cannot know the token are left out, and named with the reason."""
    model, inputs = model_of("lstm")
    anatomy = find_anatomy(model, prepare(model, inputs).batch)
    names = {run.name for run in method_runs("all", anatomy, controls=False)}
    assert "input-x-gradient" in names
    assert not {"occlusion", "rise", "shap"} & names
    answer = mhex.recommend(model, inputs.repeat(4, 1), 30, images=8, methods="all")
    assert "not known by which token: give tokenizer=, or fill=" in answer.left_out["rise"]
