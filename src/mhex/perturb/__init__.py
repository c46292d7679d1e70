"""What "removed" means, and the one sweep that asks a model about it."""

from mhex.perturb.masking import MaskedPass, MaskedResult, minmax
from mhex.perturb.references import gaussian_blur, imputed, reference
from mhex.perturb.subject import Runner, Subject, top_class
from mhex.perturb.sweep import ORDERS, Order, PerturbationSweep, SweepResult, area
from mhex.perturb.units import at_size, check_map, counts, generator_for, ranks, text_units

__all__ = [
    "ORDERS",
    "MaskedPass",
    "MaskedResult",
    "Order",
    "PerturbationSweep",
    "Runner",
    "Subject",
    "SweepResult",
    "area",
    "at_size",
    "check_map",
    "counts",
    "gaussian_blur",
    "generator_for",
    "imputed",
    "minmax",
    "ranks",
    "reference",
    "text_units",
    "top_class",
]
