"""On a GPU the third batch of a shape is recorded; what is replayed is what would have been computed."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import mhex
from mhex.capture.cuda_graph import Recording
from mhex.errors import ArgumentError
from mhex.explainer import Explainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

METHODS = {
    "vit_tiny_patch16_224": (
        *("agcam", "attcat", "attention", "attention-gradcam", "attnlrp", "cdam", "conservative-lrp", "gae", "gradcam"),
        *("gradtoken", "input-x-gradient", "lrp", "partial-lrp", "rollout", "tokentm", "transformer-attribution"),
    ),
    "resnet18": ("attnlrp", "conservative-lrp", "gradcam", "gradcam++", "guided-backprop", "layercam", "lrp"),
}
PRECISIONS = ("float32", "autocast", "bfloat16")


def model_of(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    size = {"img_size": 64} if "vit" in name else {}
    return timm.create_model(name, num_classes=10, **size).eval().to("cuda", dtype)


def batch(number: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(number)
    return torch.randn(2, 3, 64, 64, device="cuda", generator=generator).to(dtype)


def recordings(explainer: Explainer) -> int:
    return len(explainer._recordings.graphs)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("name", "method"), [(name, method) for name in METHODS for method in METHODS[name]])
def test_what_is_replayed_is_what_is_computed(name: str, method: str, precision: str) -> None:
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    model = model_of(name, dtype)
    prepared, plain = mhex.Explainer(model, method), mhex.Explainer(model, method, record=False)
    mode: Any = torch.autocast("cuda", torch.bfloat16) if precision == "autocast" else contextlib.nullcontext()
    with mode:
        for target in (None, 3, [1, 2]):
            for number in range(5):
                x = batch(number, dtype)
                got, wanted = prepared(x, target), plain(x, target)
                assert torch.equal(got.target, wanted.target) if wanted.target is not None else got.target is None
                torch.testing.assert_close(
                    got.scores, wanted.scores, rtol=1e-4, atol=1e-4 * float(wanted.scores.abs().max())
                )
                assert got.diagnostics.keys() == wanted.diagnostics.keys()
    assert recordings(prepared) == 3
    assert recordings(plain) == 0


def test_weights_that_change_in_place_are_seen() -> None:
    model = model_of("resnet18")
    explainer = mhex.Explainer(model, "gradcam")
    for number in range(4):
        explainer(batch(number))
    with torch.no_grad():
        model.fc.weight.mul_(-3)
    torch.testing.assert_close(explainer(batch(1)).scores, mhex.explain(model, batch(1), "gradcam").scores)
    assert recordings(explainer) == 1


def test_maps_of_heads_are_recorded_and_see_changed_weights() -> None:
    model = model_of("resnet18")
    heads = [w for name, w in mhex.attach(model, 10).heads.named_parameters() if name.endswith("w1.weight")]
    for weight in heads:
        nn.init.normal_(weight)
    explainer = mhex.Explainer(model, "mhex")
    before = [explainer(batch(number), 3).scores for number in range(4)]
    assert recordings(explainer) == 1
    torch.testing.assert_close(before[3], mhex.explain(model, batch(3), "mhex", 3).scores)
    for weight in heads:
        weight.data.mul_(-1)  # leaves no mark
    after = explainer(batch(3), 3).scores
    assert (after - before[3]).abs().max() > 1e-3 * before[3].abs().max() > 0
    torch.testing.assert_close(after, mhex.explain(model, batch(3), "mhex", 3).scores)


def test_another_classifier_and_device_are_noticed() -> None:
    model = model_of("resnet18")
    explainer = mhex.Explainer(model, "gradcam")
    for number in range(4):
        explainer(batch(number))
    model.fc = nn.Linear(512, 7).cuda()
    assert explainer(batch(1)).logits.shape == (2, 7)
    model.cpu()
    assert explainer(batch(1).cpu()).logits.device.type == "cpu"


def test_nan_is_refused_also_by_a_recording() -> None:
    explainer, bad = mhex.Explainer(model_of("resnet18"), "gradcam"), batch(0)
    bad[1, 0, 0, 0] = torch.nan
    wanted = [explainer(batch(number)).scores for number in range(4)]
    with pytest.raises(ArgumentError, match="sample 1 holds NaN"):
        explainer(bad)
    assert torch.equal(explainer(batch(3)).scores, wanted[3])


def test_hooks_of_the_user_are_called() -> None:
    model, calls = model_of("resnet18"), []
    explainer = mhex.Explainer(model, "gradcam")
    for number in range(4):
        explainer(batch(number))
    model.layer1.register_forward_hook(lambda *_: calls.append(1))
    explainer(batch(0))
    assert calls


def test_threads_share_a_recording() -> None:
    explainer = mhex.Explainer(model_of("resnet18"), "gradcam")
    wanted = [explainer(batch(number)).scores for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda number: explainer(batch(number % 8)).scores, range(64))
        for number, scores in enumerate(results):
            torch.testing.assert_close(scores, wanted[number % 8])


def test_memory_is_steady_and_given_back() -> None:
    model = model_of("resnet18")
    before = torch.cuda.memory_allocated()
    explainer = mhex.Explainer(model, "gradcam")
    for number in range(6):
        explainer(batch(number))
    steady = torch.cuda.memory_allocated()
    for number in range(200):
        explainer(batch(number))
    assert torch.cuda.memory_allocated() == steady
    explainer.forget()
    assert torch.cuda.memory_allocated() <= before + 2**20


def test_random_numbers_of_the_user_stay() -> None:
    explainer = mhex.Explainer(model_of("resnet18"), "gradcam")
    torch.cuda.manual_seed(3)
    wanted = torch.rand(4, device="cuda")
    torch.cuda.manual_seed(3)
    for _ in range(5):
        explainer(torch.ones(2, 3, 64, 64, device="cuda"))
    assert torch.equal(torch.rand(4, device="cuda"), wanted)


def test_work_that_is_refused_ends_before_its_memory_is_used_again() -> None:
    table, results = torch.arange(1000.0, device="cuda"), []

    def work(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], None]:
        torch.cuda._sleep(200_000_000)  # so that the gather is still to come when the work is refused
        results.append(table[tensors["index"]])
        results[-1].sum().item()  # waits
        return {}, None

    index = torch.randint(0, 1000, (100_000,), device="cuda")
    with pytest.raises(RuntimeError, match="synchroniz"):
        Recording(work, {"index": index})
    others = [torch.full_like(index, 7) for _ in range(50)]
    assert all(int(other[0]) == 7 for other in others)
    torch.testing.assert_close(results[0], index.float())


def test_what_waits_for_the_device_is_not_recorded() -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            features = self.conv(x).relu().mean((2, 3))
            return self.fc(features if float(features.sum()) > 0 else -features) * 9

    model = Asking().cuda().eval()
    explainer = mhex.Explainer(model, "gradcam")
    for number in range(5):
        torch.testing.assert_close(
            explainer(batch(number)).scores, mhex.explain(model, batch(number), "gradcam").scores
        )
    assert recordings(explainer) == 0
