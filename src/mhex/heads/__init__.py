"""The trainable Multi-Head Explainer: block, wiring, losses, saliency, collaboration."""

from mhex.heads.attach import attach
from mhex.heads.collaboration import Collaboration
from mhex.heads.confidence import ConfidenceMap
from mhex.heads.correlation import Correlation, Study, pearson, study
from mhex.heads.fitting import FitReport
from mhex.heads.heads import Heads, heads_of
from mhex.heads.scaffold import HeadsOutput, Scaffold
from mhex.heads.settings import Settings

__all__ = [
    "Collaboration",
    "ConfidenceMap",
    "Correlation",
    "FitReport",
    "Heads",
    "HeadsOutput",
    "Scaffold",
    "Settings",
    "Study",
    "attach",
    "heads_of",
    "pearson",
    "study",
]
