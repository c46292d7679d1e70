"""What a method reads from one forward pass. It is declared before the pass, so that nothing else is paid for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from mhex.errors import ArgumentError, unknown_name

Site = Literal[
    "input",  # pixels, or word embeddings
    "block_input",  # X(b), the residual stream entering a block
    "tokens",  # T(b), the (normalised) tokens entering the attention
    "attention",  # q, k, v, mask and z of the attention
    "attention_output",  # o, the attention branch after its output projection
    "mlp_input",
    "mlp_output",
    "block_output",
    "features",  # the feature maps of the CAM methods
    "latent",  # the vector that the classifier reads
    "heads",  # what the heads of mhex.attach saw
]
Depth = Literal["all", "last"]
GraphStart = Site | Literal["query"]

BLOCK_SITES = frozenset(
    ("block_input", "tokens", "attention", "attention_output", "mlp_input", "mlp_output", "block_output")
)
OUTER_SITES = ("input", "features", "latent")  # outside of the blocks


@dataclass(frozen=True)
class Needs:
    """What to keep of a forward pass and where its autograd graph starts.

    Attributes:
        keep: Sites to keep; for sites inside blocks, of all blocks or the last one only. Sites outside blocks
            take `"last"` (of several uses of one module, the last counts).
        graph: The graph starts at the first kept occurrence of this site: everything before it runs without
            a graph (the frozen prefix). For `"attention"` it starts at `z`, the attention's output before the
            output projection, for `"query"` at the queries. None: no gradient at all.
        start: `"last"` starts the graph in the last block even if the site is kept of all blocks. `"each"` starts it
            anew in every block, so that gradients reach a site by the skip connections and MLPs above it alone.
        projections: True if the weights of the value and output projections of all blocks must be known.
        block: Number of the block, from 1, that stands for the last one; None for the last itself.
    """

    keep: Mapping[Site, Depth] = field(default_factory=dict)
    graph: GraphStart | None = None
    start: Literal["first", "last", "each"] = "first"
    projections: bool = False
    block: int | None = None

    def __post_init__(self) -> None:
        for site in (*self.keep, *([self.graph] if self.graph not in (None, "query") else [])):
            if site not in get_args(Site):
                raise unknown_name("site", str(site), get_args(Site))

    @property
    def blocks(self) -> bool:
        """True if something inside Transformer blocks must be seen."""
        return any(site in BLOCK_SITES for site in self.keep)

    def at_block(self, block: int | None, count: int) -> Needs:
        """The same of another block than the last of `count`; a number that the model does not have is refused."""
        if block is None or not count:
            return self
        if not isinstance(block, int) or isinstance(block, bool) or not 1 <= block <= count:
            raise ArgumentError(f"Expected block from 1 to {count}, or None for the last, but got {block!r}.")
        return replace(self, block=block)

    def with_latent(self) -> Needs:
        """The same with the latent vector, which targets other than classes are computed from."""
        return replace(self, keep={**self.keep, "latent": "last"})

    def __str__(self) -> str:
        depths = {"all": " of all blocks", "last": f" of {'the last block' if self.block is None else 'one block'}"}
        words = [
            site.replace("_", " ") + (depths[depth] if site in BLOCK_SITES else "") for site, depth in self.keep.items()
        ]
        return ", ".join(words or ["scores alone"]) + (", gradient" if self.graph else "")
