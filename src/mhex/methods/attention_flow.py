"""Attention flow: the maximum flow from the read-out to each input token."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mhex.capture import Needs, Trace
from mhex.errors import require
from mhex.registry import register

_UNIT = 10**6  # SciPy's solver takes whole numbers: capacities are counted in millionths


@register(
    "attention-flow",
    title="Maximum flow from the read-out to each token in the graph of attentions.",
    paper="Abnar & Zuidema, ACL 2020, arXiv:2005.00928",
    needs=Needs(keep={"attention": "all"}),
    signed=False,
    class_specific=False,
    passes="F + S max-flows",
    max_tokens=64,
    use="On short inputs, as a slower relative of rollout that respects capacities.",
    avoid="On long inputs: it solves a maximum flow for every token. It is the same for all classes.",
)
def attention_flow(trace: Trace) -> Tensor:
    r"""`S_j` = maximum flow to node (0, j), where edge (b, i) -> (b-1, j) holds `(mean_h A(b)_ij + I_ij) / 2`.

    The read-out is a source with an edge of capacity `w_i` to every token i of the top layer. Capacities are rounded
    to millionths. Where the head reads one word alone, as of a decoder, the flow to this word goes without its own skip
    connections, `I_ii = 0`, which would carry half of all whatever the word says.
    """
    readout, real, spatial = (x.cpu().numpy() for x in (trace.readout, trace.real, trace.spatial))
    attentions = np.stack([block.mean_attention().double().cpu().numpy() for block in trace.blocks], axis=1)
    capacities = np.rint((attentions + np.eye(real.shape[1])) / 2 * _UNIT).astype(np.int32)  # (B, L, N, N)
    scores = np.zeros(real.shape)
    networks = [_network(*sample) for sample in zip(capacities, readout, strict=True)]
    maximum_flow = require("scipy.sparse.csgraph").maximum_flow
    for n, j in trace.track(np.argwhere(real).tolist(), "attention flow"):
        network = networks[n]
        if readout[n, j] == 1 and spatial[n, j]:
            alone = capacities[n].copy()
            alone[:, j, j] -= _UNIT // 2
            network = _network(alone, readout[n])
        scores[n, j] = maximum_flow(network, network.shape[0] - 1, j).flow_value / _UNIT
    return trace.readout.new_tensor(scores)


def _network(capacities: NDArray[np.int32], readout: NDArray[np.floating]) -> Any:
    """Sparse capacity matrix of one sample: node b*N + i is token i of layer b, the last node is the source."""
    layers, tokens, _ = capacities.shape
    source = (layers + 1) * tokens
    layer, upper, lower = np.nonzero(capacities)
    start = np.flatnonzero(readout)
    rows = np.concatenate([(layer + 1) * tokens + upper, np.full(len(start), source)])
    columns = np.concatenate([layer * tokens + lower, layers * tokens + start])
    data = np.concatenate([capacities[layer, upper, lower], np.rint(readout[start] * _UNIT).astype(np.int32)])
    return require("scipy.sparse").csr_array((data, (rows, columns)), shape=(source + 1, source + 1))
