"""The trainable Multi-Head Explainer: block, wiring, losses, saliency, collaboration."""

from mhex.heads.attachment import attach
from mhex.heads.call_record import HeadsOutput
from mhex.heads.collaboration import Collaboration, ConfidenceMap, Study, pearson, study
from mhex.heads.fit import FitReport
from mhex.heads.heads import Heads, Settings, heads_of
from mhex.heads.scaffold import Scaffold
from mhex.stats.correlation import Correlation

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
