"""Kernels that read an attention tile by tile, run by Triton's interpreter on the CPU, beside the matrix itself."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which comes with torch on Linux")

# Tokens, query heads, heads of keys, width of a head, mask, causal: tiles that are not full, and all kinds of masks.
CASES = (
    (70, 3, 3, 24, None, False),
    (70, 4, 2, 64, "bool", False),
    (33, 2, 1, 16, "added", False),
    (70, 2, 2, 16, None, True),
)

PROGRAM = """
import torch
from mhex.capture.attention_kernels import FusedAttention

def mask_of(kind, n):
    if kind == "bool":
        mask = torch.ones(2, 1, 1, n, dtype=torch.bool)
        mask[0], mask[1, ..., 50:] = False, False  # a sample whose queries may attend to nothing
        return mask
    mask = torch.zeros(2, 1, n, n)
    mask[1, ..., 20:] = -torch.inf
    return mask if kind == "added" else None

for n, heads, groups, dim, kind, causal in {cases}:
    torch.manual_seed(n + heads)
    # The interpreter cannot multiply bfloat16.
    query = torch.randn(2, n, heads, dim).half().transpose(1, 2)
    gradient = torch.randn(2, heads, n, dim).half()
    key, value = torch.randn(2, 2, groups, n, dim).half()
    row, mask = torch.rand(2, n), mask_of(kind, n)
    keys, values = (x.double().repeat_interleave(heads // groups, 1) for x in (key, value))
    logits = 0.2 * query.double() @ keys.mT
    if causal:
        logits = logits.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf) if kind == "bool" else logits + mask
    attention = logits.softmax(-1).nan_to_num(0.0)
    weighted = attention * (gradient.double() @ values.mT).clamp(min=0)
    fused = FusedAttention(query, key, mask, 0.2, causal)
    pairs = [(fused.mean(), attention.mean(1))]
    pairs += [(fused.through(row), (row.double()[:, None, None] @ attention)[:, :, 0])]
    pairs += [(fused.through(row, gradient, value), (row.double()[:, None, None] @ weighted)[:, :, 0])]
    for result, wanted in pairs:
        torch.testing.assert_close(result.double(), wanted, rtol=1e-5, atol=1e-5)
    print("agrees")
"""


def test_kernels_agree_with_the_matrix() -> None:
    program = PROGRAM.replace("{cases}", repr(CASES))
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["agrees"] * len(CASES)
