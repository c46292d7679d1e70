"""Products of float32 as products of bfloat16."""

import torch

from mhex.capture.precision import split_product


def test_split_products_leave_out_the_lowest_part_alone() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 5, 40), torch.randn(7, 40)
    wanted = x.double() @ weight.double().mT
    result = split_product(x, weight)
    assert result.shape == (2, 5, 7)
    assert result.dtype == torch.float32
    error = (result.double() - wanted).abs().max()
    coarse = ((x.bfloat16() @ weight.bfloat16().mT).double() - wanted).abs().max()
    assert error < 40 * 2**-15
    assert error < coarse / 100


def test_numbers_of_bfloat16_are_multiplied_as_they_are() -> None:
    x, weight = torch.randn(3, 8).bfloat16().float(), torch.randn(4, 8).bfloat16().float()
    torch.testing.assert_close(split_product(x, weight), x @ weight.mT)


def test_a_single_row_is_split_too() -> None:
    x, weight = torch.randn(8), torch.randn(5, 8)
    torch.testing.assert_close(split_product(x, weight), split_product(x[None], weight)[0])
