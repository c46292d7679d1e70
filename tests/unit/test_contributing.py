"""What CONTRIBUTING.md says can be done."""

import re
from pathlib import Path

import pytest
import torch

import mhex
from mhex.lab.config.recipe import read_recipe
from mhex.lab.config.suite import read_suite
from mhex.lab.datasets import catalogue
from mhex.lab.datasets.truth import load_truth
from mhex.lab.truth.task import TASKS, all_tasks
from mhex.methods import get_method
from mhex.metrics.registry import METRICS, all_metrics
from mhex.registry import METHODS
from support.models import FAMILIES

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def example(heading: str) -> str:
    """The block of code below a heading."""
    section = PAGE.split(f"## {heading}")[1].split("\n## ")[0]
    (block,) = re.findall(r"```(?:python|yaml)\n(.*?)```", section, flags=re.DOTALL)
    return block


def run(heading: str, path: Path) -> None:
    exec(compile(example(heading), str(path), "exec"), {"__name__": path.stem})


def test_the_example_of_a_method_is_one(monkeypatch, tmp_path):
    """The example, saved as a file of its own, is registered by being imported, and explains a ViT."""
    monkeypatch.setattr(METHODS, "entries", dict(METHODS.entries))  # put back afterwards
    run("Adding a method: one file", tmp_path / "my_method.py")
    family = FAMILIES["timm_vit"]
    once = mhex.explain(family.model(), family.inputs(2), "my-method", target=1)
    assert once.scores.shape == (2, *family.grid)
    assert float(once.scores.abs().max()) > 0
    twice = mhex.explain(family.model(), family.inputs(2), "my-method", target=1, an_option=2.0)
    torch.testing.assert_close(twice.scores, 2 * once.scores)
    assert get_method("my-method").option_help == {"an_option": "What it does."}


def test_the_example_of_a_metric_is_one(monkeypatch, tmp_path):
    monkeypatch.setattr(METRICS, "entries", all_metrics())  # put back afterwards
    run("Adding a metric: one file", tmp_path / "peak_share.py")
    family = FAMILIES["plain_cnn"]
    report = mhex.evaluate(family.model(), family.inputs(3), ["gradcam"], ["peak-share"], controls=False)
    scores = mhex.explain(family.model(), family.inputs(3), "gradcam").scores.flatten(1).abs()
    wanted = (scores.amax(1) / scores.sum(1)).mean()
    assert report.rows.column("value").to_numpy().mean() == pytest.approx(float(wanted))


def test_the_examples_of_a_data_set_and_a_recipe_are_ones(monkeypatch, tmp_path):
    monkeypatch.setattr(catalogue, "CATALOGUE", dict(catalogue.CATALOGUE))
    run("Adding a data set: one file", tmp_path / "two_squares.py")
    assert [item["label"] for item in catalogue.data_entry("two_squares").items()] == [0, 1]
    (tmp_path / "squares.yaml").write_text(example("Adding a recipe: one file"))
    recipe = read_recipe(tmp_path / "squares.yaml")
    assert (recipe.data.name, recipe.train.epochs) == ("two_squares", 1)


def test_the_example_of_a_task_is_one(monkeypatch, tmp_path):
    all_tasks()
    monkeypatch.setattr(TASKS, "entries", dict(TASKS.entries))  # put back afterwards
    run("Adding a task of known evidence: one file", tmp_path / "red_shape.py")
    scenes = load_truth("red-shape", limit=4)
    for row in range(4):
        red = scenes.parts(row).masks[0]  # the first object decides
        assert bool((scenes.images[row, 0, red] > scenes.images[row, 2, red]).all())
        assert scenes.parts(row).signs == (1, 0, 0)
    assert scenes.labels.tolist() == scenes.scenes.shape[:, 0].tolist()


def test_the_example_of_a_suite_is_one(tmp_path):
    (tmp_path / "glance.yaml").write_text(example("Adding a suite: one file"))
    suite = read_suite(tmp_path / "glance.yaml")
    assert list(suite.methods) == ["gradcam", "mhex"]


def test_what_attach_stores_is_what_is_said():
    """Of a model with heads, all that a plain one has not got; nothing is left by `detach`."""
    model = FAMILIES["hf_bert"].fresh()
    before = {name: (type(m), set(vars(m))) for name, m in model.named_modules()}
    hooks = [k for k in vars(model) if k.endswith("hooks")]
    count = {k: len(getattr(model, k)) for k in hooks}
    scaffold = mhex.attach(model, 7, where="first2")
    own = {n: m for n, m in model.named_modules() if n != "mhex" and not n.startswith("mhex.")}
    units = {n for n, m in own.items() if vars(m).keys() - before[n][1]}
    assert units == {"bert.encoder.layer.0", "bert.encoder.layer.1"}
    assert all(vars(own[n]).keys() - before[n][1] == {"_mhex_join"} for n in units)
    assert {n for n, m in own.items() if type(m) is not before[n][0]} == units
    more = {k: len(getattr(model, k)) - count[k] for k in hooks}
    once = ("_forward_pre_hooks", "_forward_hooks", "_load_state_dict_post_hooks")
    assert {k for k, v in more.items() if v} == set(once)
    assert all(more[k] == 1 for k in once)
    assert set(model._modules) - {"mhex"} == {"bert", "dropout", "classifier"}
    scaffold.detach()
    assert {name: (type(m), set(vars(m))) for name, m in model.named_modules()} == before
    assert {k: len(getattr(model, k)) for k in hooks} == count
