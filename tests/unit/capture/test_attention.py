"""Attention rebuilt from the kernel's inputs equals attention written out."""

import pytest
import torch
import torch.nn.functional as F

from mhex.capture import AttentionRecord

B, H, N, D = 2, 4, 6, 8


@pytest.mark.parametrize("case", ["plain", "boolean mask", "additive mask", "causal", "scale", "grouped"])
def test_probabilities_and_gradient(case):
    torch.manual_seed(0)
    groups = 2 if case == "grouped" else H
    query, key, value = (torch.randn(B, h, N, D, dtype=torch.float64) for h in (H, groups, groups))
    mask = None
    if case == "boolean mask":
        mask = torch.rand(B, 1, N, N) > 0.3
        mask[..., 0] = True
    elif case == "additive mask":
        mask = torch.randn(B, H, N, N, dtype=torch.float64)
    scale = 0.7 if case == "scale" else None
    kernel = {"attn_mask": mask, "is_causal": case == "causal", "scale": scale, "enable_gqa": case == "grouped"}
    z = F.scaled_dot_product_attention(query, key, value, **kernel)
    record = AttentionRecord(query, key, value, mask, scale or D**-0.5, case == "causal", z)

    attention = record.probabilities()
    torch.testing.assert_close(attention.sum(-1), torch.ones(B, H, N, dtype=torch.float64))
    per_head = value.repeat_interleave(H // groups, 1)
    torch.testing.assert_close(attention @ per_head, z, rtol=1e-12, atol=1e-12)

    leaf = attention.clone().requires_grad_()
    weight = torch.randn_like(z)
    (expected,) = torch.autograd.grad(((leaf @ per_head) * weight).sum(), leaf)
    torch.testing.assert_close(record.gradient(weight), expected, rtol=1e-12, atol=1e-12)


def test_half_precision_is_rebuilt_in_float32():
    query, key, value = (torch.randn(1, 1, 3, 4).bfloat16() for _ in range(3))
    record = AttentionRecord(query, key, value, None, 0.5, False, None)
    assert record.probabilities().dtype == torch.float32
    assert record.gradient(value).dtype == torch.float32


@pytest.mark.parametrize("case", ["plain", "boolean mask", "row of booleans", "additive mask", "causal", "grouped"])
@pytest.mark.parametrize("rows", [slice(None), slice(1), slice(2, 5), slice(-1, None)], ids=str)
def test_logits_of_some_rows(case, rows):
    torch.manual_seed(0)
    groups = 2 if case == "grouped" else H
    query, key, value = (torch.randn(B, h, N, D, dtype=torch.float64) for h in (H, groups, groups))
    plain = torch.stack([0.7 * query[:, h] @ key[:, h * groups // H].mT for h in range(H)], 1)
    mask, wanted = None, plain
    if case in ("boolean mask", "row of booleans"):
        mask = torch.rand(B, 1, N if case == "boolean mask" else 1, N) > 0.3
        mask[..., 0] = True
        wanted = plain.where(mask, -torch.inf)
    elif case == "additive mask":
        mask = torch.randn(B, H, N, N, dtype=torch.float64)
        wanted = plain + mask
    elif case == "causal":
        wanted = plain.where(torch.ones(N, N).tril().bool(), -torch.inf)
    record = AttentionRecord(query, key, value, mask, 0.7, case == "causal", None)
    torch.testing.assert_close(record.logits(rows), wanted[:, :, rows], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(record.logits(rows, masked=False), plain[:, :, rows], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(record.probabilities(rows), wanted.softmax(-1)[:, :, rows], rtol=1e-12, atol=1e-12)


def test_rows_that_may_attend_to_nothing_are_zero():
    query, key, value = (torch.randn(1, 1, 3, 4) for _ in range(3))
    mask = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])
    record = AttentionRecord(query, key, value, mask, 0.5, False, None)
    assert record.probabilities()[0, 0, 1].tolist() == [0, 0, 0]
    assert record.probabilities(slice(1, 2))[0, 0].tolist() == [[0, 0, 0]]
    assert record.probabilities().sum(-1).tolist() == [[pytest.approx([1, 0, 1])]]
