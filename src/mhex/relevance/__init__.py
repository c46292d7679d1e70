"""Relevance rules: operations with the same value and another backward, so that one backward pass gives relevance.

A *composite* is a small table from the name of an operation (see `mhex.capture.operations`) to its rule, so a variant
of layer-wise relevance propagation is data. It is given to `observe(..., rules=)`, and acts on the forward pass made
there, on this thread, and on the backward pass of its graph. No function is patched, and the user's weights are never
changed.
"""

from mhex.relevance.absolute import absolute_rules
from mhex.relevance.composite import gradient_rules, guided_rules, relevance_rules
from mhex.relevance.flow import Composite, Flow
from mhex.relevance.linear_rules import AlphaBeta, Box, Epsilon, Gamma, Separate

__all__ = ["Composite", "Flow", "absolute_rules", "gradient_rules", "guided_rules", "relevance_rules"]
__all__ += ["AlphaBeta", "Box", "Epsilon", "Gamma", "Separate"]
