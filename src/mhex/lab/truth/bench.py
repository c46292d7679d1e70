"""The bench of known evidence: all methods and metrics on the networks of generated tasks, as rows in a folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mhex.errors import ArgumentError, unknown_name
from mhex.judge.evaluation import evaluate
from mhex.judge.plan import MetricGiven
from mhex.judge.report import Report
from mhex.lab.config.recipe import packaged_recipes, read_recipe
from mhex.lab.datasets import data_entry
from mhex.lab.truth.reliability import TRUTHS, Evidence, Kind, evidence_of
from mhex.lab.truth.task import Task, all_tasks
from mhex.methods import all_methods
from mhex.zoo import load
from mhex.zoo.shipped import refuse_missing

PREFIX = "truth-"  # of the names of networks
# The score of `mhex.recommend` was chosen on these families of tasks. All others tested it.
CHOOSING = frozenset({"objects", "two-classes", "count", "position", "words"})
# Costs with a pass for each of n steps, K masks or S tokens: metrics that explain again leave such methods out.
_LOOP = re.compile(r"\b[nKS]\b")
SAMPLES, QUICK_SAMPLES = 32, 4
_KINDS: Mapping[str, Kind] = {"vit": "ViT", "bert": "text"}
_RANDOM: Mapping[str, Any] = {"grid": "random", "steps": 8}
_BOXES: Mapping[str, Any] = {"sizes": (1, 2, 3), "grid": 8, "count": 40}
IMAGE_METRICS: tuple[MetricGiven, ...] = (
    *("average-drop", "average-drop:mhex", "average-drop:gradcampp", "soft-average-drop", "effective-average-drop"),
    *("increase-in-confidence", "aopc", "log-odds", "perturbation-auc:quick", "road", "saco", "infidelity"),
    *("compactness", "removal", ("saco", {"granularity": "cell"})),
    *(("insertion", {"reference": name, **_RANDOM}) for name in ("mean", "blur")),
    *(("deletion", {"reference": name, **_RANDOM}) for name in ("mean", "blur", "black")),  # black: pixel flipping
    *(("insertion", {"reference": name, "granularity": "cell", **_RANDOM}) for name in ("mean", "blur")),
    *(("fidelity", {"reference": name, "centred": True, **_RANDOM}) for name in ("blur", "mean", "black")),
    *(
        ("fidelity", {"reference": name, "granularity": "cell", **_RANDOM, "centred": True})
        for name in ("blur", "mean", "black")
    ),
    *(("box-sensitivity", {"reference": name, **_BOXES}) for name in ("blur", "mean", "black")),
)
TEXT_METRICS: tuple[MetricGiven, ...] = (
    *("average-drop", "insertion", "deletion", "perturbation-auc", "aopc", "log-odds", "fidelity"),
    *("comprehensiveness", "comprehensiveness:mask_token", "sufficiency", "sufficiency:mask_token", "saco", "removal"),
    ("fidelity", {"reference": "mask_token"}),
    ("saco", {"granularity": "word"}),
)
EXPLAINING_METRICS: tuple[MetricGiven, ...] = ("balanced",)  # they explain again


@dataclass(frozen=True)
class TruthNetwork:
    """A network with a task whose evidence is known."""

    name: str  # of its recipe, and in the zoo
    task: Task
    kind: Kind

    @property
    def label(self) -> str:
        """What it is called in tables and folders: a network of another task has the task beside it."""
        return self.name if self.task.learnable else f"{self.name}, {self.task.name}"

    @property
    def choosing(self) -> bool:
        """Whether the score of `mhex.recommend` was chosen with it."""
        return self.task.family in CHOOSING


def all_networks() -> list[TruthNetwork]:
    """Every network of a packaged recipe with each task that it is judged by."""
    networks, tasks = [], all_tasks()
    for name, path in packaged_recipes().items():
        if name.startswith(PREFIX):
            learned = tasks[read_recipe(path).data.name.removeprefix("truth:")]
            kinds = [kind for part, kind in _KINDS.items() if part in name.split("-")]
            judged = [task for task in tasks.values() if learned.name in (task.name, task.network)]
            networks += [TruthNetwork(name, task, kinds[0] if kinds else "CNN") for task in judged]
    return networks


def networks_by_name(names: Sequence[str]) -> list[TruthNetwork]:
    """Networks by the names of their recipes, or all of them; unknown ones are refused."""
    networks = all_networks()
    available = list(dict.fromkeys(network.name for network in networks))
    for name in names:
        if name not in available:
            raise unknown_name("network of known evidence", name, available)
    return [network for network in networks if not names or network.name in names]


def judge_network(
    network: TruthNetwork, out: Path, *, samples: int = SAMPLES, device: str = "cpu", progress: bool | None = None
) -> Report:
    """Judge all methods on a network, by known evidence and by all metrics; rows that are in the folder stay."""
    bundle = load(f"zoo:{network.name}")
    bundle.model.to(device)
    items = data_entry(f"truth:{network.task.name}").items(limit=samples)
    metrics = TEXT_METRICS if network.kind == "text" else IMAGE_METRICS
    options: Any = {"out": out, "curves": False, "progress": progress}
    report = evaluate(bundle, items, "all", [*TRUTHS, *metrics], **options)
    quick = [name for name in report.methods if name in all_methods() and not _LOOP.search(all_methods()[name].passes)]
    evaluate(bundle, items, quick, EXPLAINING_METRICS, controls=False, **options)
    return Report.load(out)


def run_bench(
    out: Path,
    names: Sequence[str] = (),
    *,
    samples: int = SAMPLES,
    device: str = "cpu",
    progress: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Evidence]:
    """Judge networks by name (default: all) on samples of the test splits; what was broken off goes on.

    Each has a folder of its own in `out`. `say` is called with what is being done.
    """
    networks = networks_by_name(names)
    refuse_missing(dict.fromkeys(f"zoo:{network.name}" for network in networks))
    evidences = []
    for place, network in enumerate(networks):
        say(f"{network.label} ({place + 1} of {len(networks)})")
        report = judge_network(network, out / folder_of(network), samples=samples, device=device, progress=progress)
        evidences.append(evidence(report, network))
        torch.cuda.empty_cache()
    return evidences


def stored_evidence(folder: Path, names: Sequence[str] = ()) -> list[Evidence]:
    """Read what `run_bench` left in a folder, or files of `Report.to_parquet` by the names of these folders."""
    rows = [(network, folder / folder_of(network)) for network in networks_by_name(names)]
    rows = [(network, path if path.is_dir() else path.with_name(f"{path.name}.parquet")) for network, path in rows]
    rows = [(network, path) for network, path in rows if path.exists()]
    if not rows:
        raise ArgumentError(f"Expected rows of the bench of known evidence in {folder}, but there are none.")
    return [evidence(Report.load(path), network) for network, path in rows]


def folder_of(network: TruthNetwork) -> str:
    """The name of the folder of a network's rows."""
    return f"{network.name}--{network.task.name}"


def evidence(report: Report, network: TruthNetwork) -> Evidence:
    """Known evidence of the methods in a report of a network."""
    return evidence_of(report, network.label, network.task.name, network.task.family, network.kind)
