"""Seeing inside an unmodified model. The only room with hooks.

`find_anatomy` says where things are, `observe` runs the model once and yields a `Trace` of what a method `Needs`.
"""

from mhex.capture.adapters import find_anatomy, known_anatomy
from mhex.capture.anatomy import Anatomy, Block, FeatureLayer, Layout, Modality, name_of
from mhex.capture.attention import AttentionRecord
from mhex.capture.batch import Batch
from mhex.capture.block_trace import BlockTrace
from mhex.capture.guard import untouched, unwrap
from mhex.capture.needs import Needs
from mhex.capture.observe import observe
from mhex.capture.outputs import Outcome, read_logits
from mhex.capture.precision import full
from mhex.capture.rules import Composite
from mhex.capture.trace import Trace

__all__ = [
    "Anatomy",
    "AttentionRecord",
    "Batch",
    "Block",
    "BlockTrace",
    "Composite",
    "FeatureLayer",
    "Layout",
    "Modality",
    "Needs",
    "Outcome",
    "Trace",
    "find_anatomy",
    "full",
    "known_anatomy",
    "name_of",
    "observe",
    "read_logits",
    "untouched",
    "unwrap",
]
