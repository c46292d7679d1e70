"""Seeing inside an unmodified model. The only room with hooks.

`find_anatomy` says where things are, `observe` runs the model once and yields a `Trace` of what a method `Needs`.
"""

from mhex.capture.adapters import find_anatomy, known_anatomy
from mhex.capture.anatomy import Anatomy, Block, FeatureLayer, Layout, Modality, name_of
from mhex.capture.attention import AttentionRecord
from mhex.capture.batch import Batch
from mhex.capture.block_trace import BlockTrace
from mhex.capture.ending import Ending, Outputs, check_outputs, find_ending, has_sigmoids
from mhex.capture.guard import untouched, unwrap
from mhex.capture.needs import Needs
from mhex.capture.observe import observe
from mhex.capture.outputs import Outcome, read_logits
from mhex.capture.patches import logits_of, plain_vit
from mhex.capture.precision import full
from mhex.capture.rules import (
    AlphaBeta,
    Box,
    Composite,
    Epsilon,
    Gamma,
    Separate,
    absolute_rules,
    gradient_rules,
    guided_rules,
    relevance_rules,
)
from mhex.capture.trace import Trace

__all__ = [
    "AlphaBeta",
    "Anatomy",
    "AttentionRecord",
    "Batch",
    "Block",
    "BlockTrace",
    "Box",
    "Composite",
    "Ending",
    "Epsilon",
    "FeatureLayer",
    "Gamma",
    "Layout",
    "Modality",
    "Needs",
    "Outcome",
    "Outputs",
    "Separate",
    "Trace",
    "absolute_rules",
    "check_outputs",
    "find_anatomy",
    "find_ending",
    "full",
    "gradient_rules",
    "guided_rules",
    "has_sigmoids",
    "known_anatomy",
    "logits_of",
    "name_of",
    "observe",
    "plain_vit",
    "read_logits",
    "relevance_rules",
    "untouched",
    "unwrap",
]
