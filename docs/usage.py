"""The code blocks of the pages of metrics, made of what the registry says that each needs."""

from __future__ import annotations

import json
from dataclasses import fields

from mhex.metrics.registry import MetricSpec

METHODS = {"image": ("gradcam", "input-x-gradient"), "text": ("gae", "attention")}
GIVEN = {  # what blocks take for granted, in the order in which it is told
    "bundle": "`bundle` is what `mhex.load` gives",
    "data": "`data` as in [Judging explanations](../evaluate.md)",
    "images": "`images` (B, C, H, W) as the model takes them",
    "texts": "`texts` a list of strings",
    "labels": "`labels` (B,)",
    "masks": "`masks` (B, H, W), 1 at the object, 0 elsewhere, -1 to be ignored",
    "rationale": "`rationale` the marked words of each text: numbers, spans or bools",
    "others": "`others` (B,) another class that is in each image",
    "parts": "`parts` an `InputParts` of each input, as in [Known evidence](../truth.md#parts-of-your-own)",
    "relabelled": "`relabelled` a model of the same kind that was trained on permuted labels",
}


def usage(metric: MetricSpec) -> str:
    """The Markdown of how a metric is used: on a data set beside others, and alone."""
    alone = [_alone(metric, kind, _preset(metric, kind)) for kind in metric.modalities]
    if "labels" in metric.presets:
        alone.append(_alone(metric, "image", "labels"))
    dataset = _dataset(metric)
    parts = [
        "On a data set, beside other metrics, with which it shares passes:",
        _fenced(dataset),
        "Alone, as torchmetrics:",
        *map(_fenced, alone),
    ]
    protocols = _protocols(metric)
    if protocols:
        parts += ["By other protocols; `evaluate` takes the same as strings and pairs:", _fenced(protocols)]
    given = [words for name, words in GIVEN.items() if any(_takes(block, name) for block in (dataset, *alone))]
    return "\n\n".join([*parts, f"{'; '.join(given)}."])


def _fenced(block: str) -> str:
    return f"```python\n{block}\n```"


def _takes(block: str, name: str) -> bool:
    """Whether a block takes that name for granted."""
    named = any(f"{before}{name}{after}" in block for before in " (=" for after in ",.)\n[")
    return named and f"{name} =" not in block


def _protocols(metric: MetricSpec) -> str:
    """A line for each preset but the usual one, and one for changed parts; nothing where there is nothing to choose."""
    lines = [(f'metric("{name}")', f'"{metric.name}:{name}"') for name in metric.presets if name != "default"]
    usual = metric.presets["default"]
    named = {f.name: getattr(usual, f.name) for f in fields(usual) if f.name not in usual.idle}
    first = next((name for name, value in named.items() if not isinstance(value, tuple)), None)
    if first is not None:
        part = json.dumps(named[first])
        lines.append((f"metric({first}={part})", f'("{metric.name}", {{"{first}": {part}}})'))
    if not lines:
        return ""
    made = [f'get_metric("{metric.name}").{call}  # {given}' for call, given in lines]
    return "\n".join(["from mhex.metrics import get_metric", "", *made])


def _preset(metric: MetricSpec, kind: str) -> str:
    """The usual protocol for images or texts."""
    return "text" if kind == "text" and "text" in metric.presets else "default"


def _dataset(metric: MetricSpec) -> str:
    kind = metric.modalities[0]
    lines = ["import mhex"]
    if "tiles" in metric.data:
        lines += [
            "from mhex.metrics.grid_pointing_game import mosaics",
            "from mhex.perturb import Subject",
            "",
            "found = mosaics(Subject(bundle.model, images, label=labels), n=2)",
            'data = {"inputs": found.pixels, "tiles": found.tiles}',
        ]
    else:
        lines.append("")
    methods = ", ".join(f'"{name}"' for name in METHODS[kind])
    call = f'report = mhex.evaluate(bundle, data, methods=[{methods}], metrics=["{metric.name}"])'
    lines += [call, "print(report)"]
    if "labels" in metric.presets:
        call = f'mhex.evaluate(bundle, data, methods=["{METHODS[kind][0]}"], metrics=["{metric.name}:labels"], '
        lines += ["", f"report = {call}relabelled=relabelled)"]
    return "\n".join(lines)


def _alone(metric: MetricSpec, kind: str, preset: str) -> str:
    tiles = "tiles" in metric.data
    inputs = "found.pixels" if tiles else "images" if kind == "image" else "texts"
    given = "preprocess=bundle.preprocess" if kind == "image" else "tokenizer=bundle.tokenizer"
    label = ", label=labels" if "label" in metric.data else ""
    again = "again" if metric.explains or "two classes" in metric.data or preset == "labels" else ""
    lines = [
        "import mhex",
        *(["import torch"] if "parts" in metric.data and kind == "image" else []),
        "from mhex.metrics import Case, get_metric",
        *(["from mhex.metrics.grid_pointing_game import mosaics"] if tiles else []),
        "from mhex.perturb import Subject",
        "",
    ]
    if tiles:
        lines.append("found = mosaics(Subject(bundle.model, images, label=labels), n=2)")
    if "parts" in metric.data:
        stack = "torch.stack(inputs)" if kind == "image" else "inputs"
        lines += ["", "def answers(inputs):", f"    return Subject(bundle.model, {stack}, {given}).logits", "", ""]
    lines.append(f"subject = Subject(bundle.model, {inputs}{label}, {given})")
    lines.append(f"explained = {'found.tiles[:, 0]' if tiles else 'subject.predicted'}")
    method = METHODS[kind][0]
    if again:
        lines += [
            "",
            "",
            "def explain(inputs, classes, model=bundle):",
            f'    return mhex.explain(model, inputs, "{method}", classes).scores',
            "",
            "",
        ]
    made = f"explain({inputs}, explained)" if again else f'mhex.explain(bundle, {inputs}, "{method}", explained).scores'
    lines.append(f"maps = {made}")
    chosen = "" if preset == "default" else f'"{preset}"'
    lines.append(f'metric = get_metric("{metric.name}").metric({chosen})')
    if "two classes" in metric.data:
        lines.append("second = Case(subject, explain(images, others), others, other_class=explained)")
    lines.append(f"case = Case(subject, maps, explained{_beside(metric, preset)})")
    lines += [
        "metric.update(*metric.of(case))",
        "print(metric.compute())  # value, ci_low, ci_high, n, n_skipped, protocol, all",
    ]
    return "\n".join(lines)


def _beside(metric: MetricSpec, preset: str) -> str:
    """What a case has beside the maps."""
    found = {
        "mask": ", mask=masks",
        "rationale": ", rationale=rationale",
        "tiles": ", tiles=found.tiles",
        "parts": ", parts=parts, answers=answers",
        "two classes": ", other_class=others, other=lambda: second",
    }
    beside = "".join(found.get(name, "") for name in metric.data)
    if preset == "labels":
        return f"{beside}, relabelled=lambda inputs, classes: explain(inputs, classes, relabelled)"
    return f"{beside}, again=explain" if metric.explains else beside
