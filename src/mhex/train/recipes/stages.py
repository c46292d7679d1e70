"""The stages of the pets recipe, in the order in which they need each other.

Two ResNet-18 learn CIFAR-10 and then the pets; they are the teachers. Each shipped network goes the same way and is
taught by them all along, since few photos carry little and a teacher's soft answers to mixed photos carry more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mhex.train.augment import Augment
from mhex.train.loop import Schedule
from mhex.train.view import View

CIFAR_SIDE = 64
PETS_CLASSES = 37
CIFAR_CLASSES = 10


@dataclass(frozen=True)
class Stage:
    """One network trained on one data set.

    Attributes:
        name: Name of the stage and of the file of its weights.
        architecture: Name of a timm model.
        arguments: Arguments that shape the network, number of classes aside.
        data: Data set to learn.
        view: What the network sees of a photo.
        schedule: Settings of the loop.
        changes: Augmentation.
        seed: Seed of the stage.
        start: Stage whose weights to start from, the head aside; None starts from random weights.
        teachers: Stages whose networks teach this one.
        extra: Arguments that matter in training alone, such as a rate of dropped paths.
    """

    name: str
    architecture: str
    data: Literal["cifar10", "pets"]
    view: View
    schedule: Schedule
    changes: Augment
    seed: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    start: str | None = None
    teachers: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """Number of classes of the data set."""
        return CIFAR_CLASSES if self.data == "cifar10" else PETS_CLASSES

    def smoke(self) -> Stage:
        """The same stage cut down to a step or two, to try whether everything fits together."""
        small = replace(self.schedule, epochs=1, batch=8, compile=False)
        return replace(self, schedule=small, changes=replace(self.changes, canvas=self.view.size))


CIFAR_CHANGES = Augment(canvas=CIFAR_SIDE, scale=(0.3, 1.0), cutmix=0.5, mixup=0.0)
PETS_CHANGES = Augment(canvas=192, scale=(0.2, 1.0), cutmix=0.5, mixup=0.2)
TAUGHT_CHANGES = replace(PETS_CHANGES, cutmix=0.4, mixup=0.3)

VIT = {"patch_size": 8, "depth": 9}
TEACHERS = ("teacher-a", "teacher-b")


def teacher_stages(name: str, seed: int) -> tuple[Stage, Stage]:
    """The two stages of one teacher: CIFAR-10, then pets."""
    early = Stage(
        name=f"{name}-cifar10",
        architecture="resnet18d",
        data="cifar10",
        view=View(CIFAR_SIDE),
        schedule=Schedule(epochs=30, batch=512, optimizer="sgd", rate=0.2, decay=5e-4),
        changes=CIFAR_CHANGES,
        seed=seed,
    )
    late = Stage(
        name=name,
        architecture="resnet18d",
        data="pets",
        view=View(128),
        schedule=Schedule(epochs=300, batch=256, optimizer="sgd", rate=0.1, decay=5e-4),
        changes=PETS_CHANGES,
        seed=seed + 1,
        start=early.name,
    )
    return early, late


RESNET = (
    Stage(
        name="resnet10t-cifar10",
        architecture="resnet10t",
        data="cifar10",
        view=View(CIFAR_SIDE),
        schedule=Schedule(epochs=40, batch=512, optimizer="sgd", rate=0.2, decay=5e-4, distil=0.5),
        changes=CIFAR_CHANGES,
        seed=31,
        teachers=tuple(f"{name}-cifar10" for name in TEACHERS),
    ),
    Stage(
        name="pets-resnet10t",
        architecture="resnet10t",
        data="pets",
        view=View(128),
        schedule=Schedule(epochs=700, batch=256, optimizer="sgd", rate=0.1, decay=2e-4),
        changes=TAUGHT_CHANGES,
        seed=32,
        start="resnet10t-cifar10",
        teachers=TEACHERS,
    ),
)
TRANSFORMER = (
    Stage(
        name="vit-cifar10",
        architecture="vit_tiny_patch16_224",
        arguments={"img_size": CIFAR_SIDE, **VIT},
        data="cifar10",
        view=View(CIFAR_SIDE),
        schedule=Schedule(epochs=100, batch=512, optimizer="adamw", rate=1e-3, decay=0.05, distil=0.5, compile=True),
        changes=CIFAR_CHANGES,
        seed=41,
        teachers=tuple(f"{name}-cifar10" for name in TEACHERS),
        extra={"drop_path_rate": 0.05},
    ),
    Stage(
        name="pets-vit",
        architecture="vit_tiny_patch16_224",
        arguments={"img_size": 96, **VIT},
        data="pets",
        view=View(96),
        schedule=Schedule(epochs=1500, batch=512, optimizer="adamw", rate=8e-4, decay=0.05, compile=True),
        changes=TAUGHT_CHANGES,
        seed=42,
        start="vit-cifar10",
        teachers=TEACHERS,
        extra={"drop_path_rate": 0.05},
    ),
)
STAGES: tuple[Stage, ...] = (*teacher_stages("teacher-a", 11), *teacher_stages("teacher-b", 21), *RESNET, *TRANSFORMER)
SHIPPED: Mapping[str, str] = {
    "pets-resnet10t": "Small residual network for cat and dog breeds",
    "pets-vit": "Small vision transformer for cat and dog breeds",
}
