"""What a user can cause is refused by errors, also under `python -O`, which takes every `assert` out."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mhex

SOURCES = Path(mhex.__file__).parent

# Each line is run by itself under -O, and must raise an error of the library.
REFUSED = """
get_metric("max-sensitivity").metric(radius=-1.0)
get_metric("deletion").metric(steps=0)
get_metric("deletion").metric(tie="coin")
get_metric("sensitivity-n").metric(fraction=-1)
GroupProtocol(reference="nothing")
GroupProtocol(tie="coin")
settle("paper", sharpnes=0.5)
changed("default", {})
Concept(torch.ones(3)).score(Outcome(torch.zeros(1, 2), None))
Batch("image", (torch.zeros(1, 3, 4, 4),), size=1).roles
Batch("text", size=1, kwargs={"input_ids": torch.zeros(1, 2)}, args=("a",)).pixels
TrainingRecipe.model_construct(name="fitted", train=None, fit=RecipeFit()).training
"""

PROGRAM = """
import torch
from mhex import Concept, MhexError
from mhex.capture import Batch, Outcome
from mhex.heads.saliency import settle
from mhex.metrics import get_metric
from mhex.metrics.base import changed
from mhex.metrics.saco import GroupProtocol
from mhex.lab.config.recipe import RecipeFit, TrainingRecipe

assert False, "asserts must be off"
for line in REFUSED.strip().splitlines():
    try:
        eval(line)
    except MhexError:
        continue
    print(line)
"""


@pytest.mark.slow  # -O compiles every imported file anew
def test_arguments_are_refused_without_asserts() -> None:
    program = f"REFUSED = {REFUSED!r}\n{PROGRAM}"
    done = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_asserts_only_narrow_the_types_of_plain_names() -> None:
    wrong = []
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assert) and not _narrows(node.test):
                wrong.append(f"{path.relative_to(SOURCES)}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []


def _narrows(test: ast.expr) -> bool:
    """True of `name is not None` and `isinstance(name, Type)`."""
    if isinstance(test, ast.Compare):
        right = test.comparators
        plain = isinstance(test.left, ast.Name) and isinstance(test.ops[0], ast.IsNot) and len(right) == 1
        return plain and isinstance(right[0], ast.Constant) and right[0].value is None
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "isinstance":
        return all(isinstance(argument, ast.Name) for argument in test.args)
    return False
