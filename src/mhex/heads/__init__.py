"""The trainable Multi-Head Explainer: block, wiring, losses, saliency, collaboration."""

from mhex.heads.attach import attach
from mhex.heads.fitting import FitReport
from mhex.heads.heads import Heads, Settings, heads_of
from mhex.heads.scaffold import HeadsOutput, Scaffold

__all__ = ["FitReport", "Heads", "HeadsOutput", "Scaffold", "Settings", "attach", "heads_of"]
