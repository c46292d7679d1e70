"""Cora: a graph of papers that cite each other, in the files of Planetoid, which torch-geometric reads."""

from typing import NoReturn

from mhex.errors import ArgumentError
from mhex.lab.datasets.archives import Archive
from mhex.lab.datasets.catalogue import register_data
from mhex.lab.datasets.source import Source, copy

CORA_FOLDER = "planetoid/Cora/raw"
CORA_FILES = tuple(f"ind.cora.{part}" for part in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index"))


@register_data(
    "cora",
    listed=False,
    title="Cora",
    licence="none named",
    citation="Z. Yang, W. W. Cohen, R. Salakhutdinov: Revisiting Semi-Supervised Learning with Graph Embeddings. "
    "International Conference on Machine Learning, 2016.",
    form="2,708 papers, 7 topics, as published",
    files="`planetoid/Cora/raw/`: `ind.cora.*`",
    source=Source(
        "https://github.com/kimiyoung/planetoid", CORA_FOLDER, (Archive("planetoid-master.zip"),), copy(*CORA_FILES)
    ),
    task="nodes",
    train=None,
)
def load_cora(split: str = "train", *, limit: int | None = None) -> NoReturn:
    """Refuse to load: the files are placed for torch-geometric, and mhex has no data sets of graphs."""
    raise ArgumentError(
        "mhex does not read Cora: torch_geometric.datasets.Planetoid(root, 'Cora') does, where root is the folder "
        "planetoid in the data folder."
    )
