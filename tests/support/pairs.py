"""Two methods compared on the same images."""

from torch import Tensor, stack

from mhex.stats.comparison import Paired, all_pairs


def paired(first: Tensor, second: Tensor, flips: int | None = None) -> Paired:
    """Compare values (n,) of two methods; an image without a value of either does not count."""
    return all_pairs(stack([first.double(), second.double()], 1), flips=flips)[0, 1]
