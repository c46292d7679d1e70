"""What the tests of whole runs share."""

from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file

from mhex.lab.train.loop import Loop

# Everything that carries a state from step to step: batch norm, dropout, averages, mixing, slices, validation, and an
# optimiser that counts its steps once for a group of parameters.
FULL = {
    "model": {"extra": {"drop_rate": 0.2}},
    "train": {"ema": 0.8, "accumulate": 2, "smoothing": 0.1, "epochs": 3, "optimizer": "lamb"},
    "augment": {"cutmix": 0.4, "mixup": 0.3},
}
NEWS = {
    "data": {"name": "ag_news", "side": None, "length": 8},
    "model": {"source": "hf-folder", "architecture": "bert"},
}


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


def kill(*arguments, **options):
    raise Killed


def weights(out, name="weights"):
    return load_file(out / f"{name}.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def break_at(monkeypatch, step):
    """Let the run end without a word before a step."""
    real = Loop.step

    def breaking(self, now, *rest):
        if now == step:
            raise Killed
        return real(self, now, *rest)

    monkeypatch.setattr(Loop, "step", breaking)


@contextmanager
def broken_at(monkeypatch, step):
    with monkeypatch.context() as patch:
        break_at(patch, step)
        with pytest.raises(Killed):
            yield
