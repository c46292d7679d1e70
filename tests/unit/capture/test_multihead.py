"""Our multi-head attention means the same as torch's, and shows its inner attention to the tap."""

import pytest
import torch
from torch import nn

from mhex.capture.hooks import FunctionTap
from mhex.errors import CaptureError


def run(module, *args, **kwargs):
    """Result under the tap, and how many attentions it saw."""
    seen = []

    def attend(kernel, *a, **k):
        seen.append(a[0].shape)
        return kernel(*a, **k)

    with torch.no_grad(), FunctionTap(attend):
        return module(*args, **kwargs), seen


def masks():
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    bias = torch.randn(5, 5, dtype=torch.float64)
    per_head = torch.randn(2 * 4, 5, 5, dtype=torch.float64)
    return {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "causal": {"attn_mask": causal},
        "both": {"attn_mask": causal, "key_padding_mask": padding},
        "bias": {"attn_mask": bias},
        "per head": {"attn_mask": per_head},
        "hint": {"attn_mask": causal, "is_causal": True},
    }


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("mask", masks())
def test_equals_torch(mask, batch_first, need_weights):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=batch_first).double().eval()
    x = torch.randn((2, 5, 16) if batch_first else (5, 2, 16), dtype=torch.float64)
    options = {"need_weights": need_weights, **masks()[mask]}
    with torch.no_grad():
        expected, weights = module(x, x, x, **options)
    (output, seen_weights), seen = run(module, x, x, x, **options)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    if need_weights:
        torch.testing.assert_close(seen_weights, weights, rtol=1e-12, atol=1e-12)
    else:
        assert seen_weights is None
    assert seen == [(2, 4, 5, 4)]


def test_cross_attention_and_separate_projections():
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, kdim=8, vdim=12, bias=False, batch_first=True).double().eval()
    inputs = [torch.randn(2, n, d, dtype=torch.float64) for n, d in ((3, 16), (5, 8), (5, 12))]
    with torch.no_grad():
        expected, _ = module(*inputs)
    (output, _), seen = run(module, *inputs)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    assert len(seen) == 1


def test_encoder_layers_show_their_attention():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).double()
    model = nn.TransformerEncoder(layer, 3).eval()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
    output, seen = run(model, x, src_key_padding_mask=padding)
    torch.testing.assert_close(output[0], expected[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(output[1, :3], expected[1, :3], rtol=1e-12, atol=1e-12)
    assert len(seen) == 3


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_rare_forms_are_refused(option):
    module = nn.MultiheadAttention(16, 4, **{option: True}).eval()
    with pytest.raises(CaptureError, match="cannot be explained yet"):
        run(module, *[torch.randn(3, 2, 16)] * 3)
