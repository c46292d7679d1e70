"""The recipe of the zoo's pets networks: ``python -m mhex.train.recipes.pets --out DIR``.

Every stage leaves ``DIR/NAME.safetensors`` in full precision; a stage whose file exists is not run again. At the end
``DIR/shipped`` holds each network in half precision with its card, whose accuracy is measured from those very files.
The split ``test`` is read for that measurement alone; ``--holdout`` serves for trying settings.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from mhex.data.cifar10 import load_cifar10
from mhex.data.pets import Pets, load_pets
from mhex.errors import ArgumentError, unknown_name
from mhex.train.card import describe, measure, write_card
from mhex.train.checkpoint import load_weights, read_facts, save_half, save_weights, transfer
from mhex.train.evaluate import accuracy, predict
from mhex.train.loop import Ensemble, fit
from mhex.train.recipes.stages import SHIPPED, STAGES, Stage

SMOKE_PHOTOS = 16
MODULE = "mhex.train.recipes.pets"


def make(stage: Stage, *, training: bool) -> nn.Module:
    """The network of a stage with random weights; ``training`` adds what matters in training alone."""
    extra = stage.extra if training else {}
    model: nn.Module = timm.create_model(
        stage.architecture, pretrained=False, num_classes=stage.classes, **stage.arguments, **extra
    )
    return model


def run_stage(
    stage: Stage,
    stages: dict[str, Stage],
    out: Path,
    *,
    smoke: bool = False,
    holdout: int | None = None,
    progress: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Train the network of one stage and write its weights.

    Args:
        stage: The stage.
        stages: All stages by name, for the teachers.
        out: Folder of the weights of all stages.
        smoke: Whether to take a few photos only.
        holdout: Leave out every so-manieth training photo of the pets, and report the accuracy on those.
        progress: Whether to draw a progress bar.
        say: Takes lines about the progress.
    """
    begin = time.perf_counter()
    torch.manual_seed(stage.seed)
    model = make(stage, training=True)
    if stage.start is not None:
        transfer(model, out / f"{stage.start}.safetensors")
    members = [make(stages[name], training=False) for name in stage.teachers]
    for name, member in zip(stage.teachers, members, strict=True):
        load_weights(member, out / f"{name}.safetensors")
    limit = SMOKE_PHOTOS if smoke else None
    images, labels, group_of = _photos(stage, limit)
    kept = torch.ones(len(labels), dtype=torch.bool)
    if holdout is not None and stage.data == "pets":
        kept[::holdout] = False
    say(f"{stage.name}: {stage.schedule.epochs} epochs of {int(kept.sum())} photos")
    trained = fit(
        model,
        images[kept],
        labels[kept],
        stage.classes,
        stage.schedule,
        stage.changes,
        stage.view,
        seed=stage.seed,
        teacher=Ensemble(members, [stages[name].view for name in stage.teachers]) if members else None,
        group_of=group_of,
        progress=progress,
        report=lambda line: say(f"{stage.name}: {line}, {time.perf_counter() - begin:.0f} s"),
    )
    if not kept.all() and group_of is not None:
        shares = accuracy(predict(trained, images[~kept], stage.view), labels[~kept], group_of)
        say(f"{stage.name}: held out, breed {shares['class']:.4f}, cat/dog {shares['group']:.4f}")
    seconds = time.perf_counter() - begin
    facts = {"epochs": str(stage.schedule.epochs), "seed": str(stage.seed), "seconds": f"{seconds:.0f}"}
    save_weights(trained, out / f"{stage.name}.safetensors", facts)
    say(f"{stage.name}: done in {seconds:.0f} s")


def _photos(stage: Stage, limit: int | None) -> tuple[Tensor, Tensor, tuple[int, ...] | None]:
    """Training photos (N, 3, H, W), labels (N,), and the group of each class where classes have groups."""
    if stage.data == "cifar10":
        cifar = load_cifar10("train", limit=limit)
        return cifar.images, cifar.labels, None
    pets = load_pets("trainval", limit=limit)
    return pets.images, pets.labels, pets.class_species


def ship(name: str, stages: dict[str, Stage], out: Path, photos: Pets, command: str) -> dict[str, Any]:
    """Write a network in half precision with its card into ``out/shipped``, and measure it from there.

    Args:
        name: Name of the shipped network, which is the name of its last stage.
        stages: All stages by name.
        out: Folder of the weights of all stages.
        photos: The photos to judge by.
        command: The command that makes the weights, for the card.

    Returns:
        The card as written.

    Raises:
        ArgumentError: The weights were made with other settings than the card would tell.
    """
    stage = stages[name]
    folder = out / "shipped"
    folder.mkdir(exist_ok=True)
    source = out / f"{name}.safetensors"
    facts = read_facts(source)
    if facts.get("epochs") != str(stage.schedule.epochs) or facts.get("seed") != str(stage.seed):
        raise ArgumentError(
            f"The card of {name} would tell of {stage.schedule.epochs} epochs and seed {stage.seed}, and the weights "
            f"in {source.name} come from {facts.get('epochs')} epochs and seed {facts.get('seed')}: remove it and "
            "train again."
        )
    save_half(load_file(source), folder / f"{name}.safetensors", {"name": name, "licence": "see the card"})
    arguments = {"num_classes": stage.classes, **stage.arguments}
    model = make(stage, training=False)
    card = describe(
        name,
        SHIPPED[name],
        stage.architecture,
        arguments,
        stage.view,
        photos,
        {
            "command": command,
            "seed": stage.seed,
            "epochs": {step: stages[step].schedule.epochs for step in lineage(stage, stages)},
            "done": account(stage, stages),
            "torch": facts["torch"],
            "timm": facts["timm"],
            "date": facts["date"],
        },
        sum(parameter.numel() for parameter in model.parameters()),
    )
    write_card(card, folder)
    card["accuracy"] = measure(folder, name, photos)
    write_card(card, folder)
    return card


def lineage(stage: Stage, stages: dict[str, Stage]) -> list[str]:
    """Names of all stages that a stage rests on, itself last, each once and after what it needs."""
    names: list[str] = []
    for needed in [*([stage.start] if stage.start else []), *stage.teachers]:
        names += [name for name in lineage(stages[needed], stages) if name not in names]
    return [*names, stage.name]


def account(stage: Stage, stages: dict[str, Stage]) -> str:
    """One sentence per stage about what was done, for the card."""
    lines = []
    for name in lineage(stage, stages):
        step = stages[name]
        taught = f", taught by {' and '.join(step.teachers)}" if step.teachers else ""
        begun = f"from {step.start}" if step.start else "from random weights"
        lines.append(
            f"{name}: {step.architecture} {begun} on {step.data} at {step.view.size} px, {step.schedule.epochs} epochs "
            f"of {step.schedule.optimizer} (rate {step.schedule.rate:g}, batch {step.schedule.batch}){taught}."
        )
    return " ".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe, or some of its stages.

    Args:
        arguments: Command line without the program; None takes the program's own.

    Returns:
        Exit status.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="Train the pets networks of the zoo.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights of all stages")
    parser.add_argument("--smoke", action="store_true", help="a step or two per stage on a few photos")
    parser.add_argument("--stages", nargs="+", metavar="NAME", help="run these stages only, and ship nothing")
    parser.add_argument("--ship", action="store_true", help="train nothing, only write and measure the shipped files")
    parser.add_argument("--holdout", type=int, metavar="K", help="leave out every K-th training photo and judge by it")
    parser.add_argument("--progress", action="store_true", help="draw a progress bar")
    wanted = parser.parse_args(arguments)
    stages = {stage.name: stage.smoke() if wanted.smoke else stage for stage in STAGES}
    wanted.out.mkdir(parents=True, exist_ok=True)
    for name in [] if wanted.ship else wanted.stages or list(stages):
        if name not in stages:
            raise unknown_name("stage", name, stages)
        if (wanted.out / f"{name}.safetensors").exists():
            print(f"{name}: already there")
            continue
        run_stage(
            stages[name],
            stages,
            wanted.out,
            smoke=wanted.smoke,
            holdout=wanted.holdout,
            progress=wanted.progress,
            say=lambda line: print(line, flush=True),
        )
    if wanted.stages is None and wanted.holdout is None:
        photos = load_pets("test", limit=SMOKE_PHOTOS if wanted.smoke else None)
        for name in SHIPPED:
            card = ship(name, stages, wanted.out, photos, f"python -m {MODULE} --out DIR")
            print(f"{name}: {card['accuracy']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
