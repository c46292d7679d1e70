"""What "removed" means, and the one sweep that asks a model about it."""

from mhex.perturb.curves import RANDOM_AREAS, STRATA, Grid, area, counts, random_counts, shares
from mhex.perturb.masking import MaskedPass, MaskedResult, minmax
from mhex.perturb.references import PIXELS, WORDS, gaussian_blur, imputed, reference
from mhex.perturb.subject import PassResult, Runner, Subject, check_images, column_of, top_class
from mhex.perturb.sweep import ORDERS, Order, PerturbationSweep, SweepResult
from mhex.perturb.units import Units, at_size, check_map, check_maps, generator_for, ranks, removed_words, text_units

__all__ = ["RANDOM_AREAS", "STRATA", "Grid", "area", "counts", "random_counts", "shares"]
__all__ += ["MaskedPass", "MaskedResult", "minmax"]
__all__ += ["PIXELS", "WORDS", "gaussian_blur", "imputed", "reference"]
__all__ += ["PassResult", "Runner", "Subject", "check_images", "column_of", "top_class"]
__all__ += ["ORDERS", "Order", "PerturbationSweep", "SweepResult"]
__all__ += ["Units", "at_size", "check_map", "check_maps", "generator_for", "ranks", "removed_words", "text_units"]
