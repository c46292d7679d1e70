"""Half precision on a GPU: attention that is never written, and products of float32 on tensor cores."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from torch import Tensor, nn

import mhex
from mhex.capture.attention import AttentionRecord
from mhex.capture.precision import rows_product, split_product

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def vit() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=96).eval().cuda()


def images() -> Tensor:
    return torch.randn(3, 3, 96, 96, device="cuda", generator=torch.Generator("cuda").manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("masked", ["no", "bool", "added", "causal"])
def test_attention_that_is_never_written(dtype: torch.dtype, masked: str) -> None:
    torch.manual_seed(0)
    query, gradient = torch.randn(2, 2, 4, 150, 40, device="cuda").to(dtype)
    key, value = torch.randn(2, 2, 2, 150, 40, device="cuda").to(dtype)
    mask = None
    if masked == "bool":
        mask = torch.rand(2, 1, 150, 150, device="cuda") < 0.7
        mask[0, :, 7] = False
    if masked == "added":
        mask = torch.randn(2, 4, 150, 150, device="cuda").to(dtype)
    record = AttentionRecord(query, key, value, mask, 0.15, masked == "causal", None)
    row = torch.rand(2, 150, device="cuda")
    for rows in (slice(None), slice(1)):
        fused = record.fused(rows)
        assert fused is not None
        attention = record.probabilities(rows)
        weighted = record.gradient(gradient[:, :, rows]).clamp(min=0) * attention
        short = row[:, rows]
        torch.testing.assert_close(fused.mean(), attention.mean(1), rtol=1e-4, atol=1e-5)
        for result, matrix in (
            (fused.through(short), attention),
            (fused.through(short, gradient[:, :, rows], value), weighted),
        ):
            wanted = (short[:, None, None].double() @ matrix.double())[:, :, 0]
            torch.testing.assert_close(result.double(), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_float32_has_its_matrix() -> None:
    query, key, value = torch.randn(3, 2, 4, 20, 16, device="cuda")
    assert AttentionRecord(query, key, value, None, 0.25, False, None).fused() is None


def test_split_products_are_nearly_those_of_float32() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 50, 300, device="cuda"), torch.randn(70, 300, device="cuda")
    wanted = x.double() @ weight.double().mT
    error = (split_product(x, weight).double() - wanted).abs().max() / wanted.abs().max()
    coarse = ((x.bfloat16() @ weight.bfloat16().mT).double() - wanted).abs().max() / wanted.abs().max()
    assert error < 2**-16 < coarse / 10


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_rows_of_any_size_meet_matrices_of_float16(size: float) -> None:
    """Numbers below 6e-8 are 0 in float16, and numbers above 65504 infinite."""
    torch.manual_seed(0)
    rows, matrices = size * torch.randn(2, 3, 64, device="cuda"), torch.randn(2, 64, 50, device="cuda").half()
    wanted = rows.double() @ matrices.double()
    error = (rows_product(rows, matrices).double() - wanted).abs().max() / wanted.abs().max()
    assert error < 1e-5


@pytest.mark.parametrize("method", ["lrp", "partial-lrp", "abslrp", "transformer-attribution"])
@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_relevance_in_half_precision_is_that_of_float32(method: str, weights: str) -> None:
    """Also on weights and images of half precision: those of the float32 model are rounded in the same way."""
    model = vit().bfloat16().float() if weights == "bfloat16" else vit()
    x = images().bfloat16().float() if weights == "bfloat16" else images()
    wanted = mhex.explain(model, x, method, 3).scores
    half = copy.deepcopy(model).bfloat16() if weights == "bfloat16" else model
    with torch.autocast("cuda", torch.bfloat16, enabled=weights == "float32"):
        scores = mhex.explain(half, x.to(next(half.parameters()).dtype), method, 3).scores
    ranks = [tensor.flatten(1).argsort().argsort().double() for tensor in (scores, wanted)]
    agreement = torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in zip(*ranks, strict=True)])
    assert agreement.min() > 0.99


@pytest.mark.parametrize("method", ["gae", "rollout", "gradtoken", "tokentm", "attcat"])
def test_maps_of_half_precision_agree_with_float32(method: str) -> None:
    model = vit()
    target = 3 if method != "rollout" else None
    wanted = mhex.explain(model, images(), method, target).scores
    with torch.autocast("cuda", torch.bfloat16):
        scores = mhex.explain(model, images(), method, target).scores
    pairs = zip(scores.flatten(1), wanted.flatten(1), strict=True)
    assert min(float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in pairs) > 0.99
