"""What "removed" means, and the one sweep that asks a model about it."""

from mhex.perturb.boxes import BoxResult, BoxSweep
from mhex.perturb.curves import ORDERS, Order, SweepResult, area
from mhex.perturb.groups import GroupPass, GroupResult
from mhex.perturb.imputation import imputed
from mhex.perturb.masking import MaskedPass, MaskedResult, minmax
from mhex.perturb.mosaics import Mosaics, mosaics
from mhex.perturb.neighbours import NeighbourPass, NeighbourResult
from mhex.perturb.noise import NoisePass, NoiseResult
from mhex.perturb.randomized import RandomizedPass, RandomizedResult
from mhex.perturb.ranks import counts, generator_for, ranks
from mhex.perturb.references import gaussian_blur, reference
from mhex.perturb.runner import Runner
from mhex.perturb.shares import SharePasses, ShareResult
from mhex.perturb.steadiness import SteadyPass, SteadyResult
from mhex.perturb.subject import Subject, top_class
from mhex.perturb.sweep import PerturbationSweep
from mhex.perturb.units import at_size, check_map, text_units

__all__ = [
    "ORDERS",
    "BoxResult",
    "BoxSweep",
    "GroupPass",
    "GroupResult",
    "MaskedPass",
    "MaskedResult",
    "Mosaics",
    "NeighbourPass",
    "NeighbourResult",
    "NoisePass",
    "NoiseResult",
    "Order",
    "PerturbationSweep",
    "RandomizedPass",
    "RandomizedResult",
    "Runner",
    "SharePasses",
    "ShareResult",
    "SteadyPass",
    "SteadyResult",
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
    "mosaics",
    "ranks",
    "reference",
    "text_units",
    "top_class",
]
