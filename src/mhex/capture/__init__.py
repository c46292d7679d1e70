"""Seeing inside an unmodified model. The only room with hooks.

`find_anatomy` says where things are, `observe` runs the model once and yields a `Trace` of what a method `Needs`.
"""

from mhex.capture.adapters.families import known_anatomy
from mhex.capture.adapters.generic import find_anatomy
from mhex.capture.anatomy import Anatomy, Block, FeatureLayer, Modality, name_of
from mhex.capture.attention import AttentionRecord
from mhex.capture.batch import Batch, full
from mhex.capture.block_trace import BlockTrace
from mhex.capture.guard import untouched
from mhex.capture.needs import Needs
from mhex.capture.outputs import Ending, Outcome, Outputs, check_outputs, find_ending, has_sigmoids, read_logits
from mhex.capture.replay import logits_of, plain_vit
from mhex.capture.trace import Trace, observe
from mhex.capture.wrappers import unwrap

__all__ = ["Anatomy", "Block", "FeatureLayer", "Modality", "find_anatomy", "known_anatomy", "name_of"]
__all__ += ["AttentionRecord", "Batch", "BlockTrace", "Needs", "Trace", "full", "observe"]
__all__ += ["Ending", "Outcome", "Outputs", "check_outputs", "find_ending", "has_sigmoids", "read_logits"]
__all__ += ["logits_of", "plain_vit", "untouched", "unwrap"]
