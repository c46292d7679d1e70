"""What CONTRIBUTING.md says can be done."""

import re
from pathlib import Path

import torch

import mhex
from mhex import methods
from mhex.registry import METHODS
from support.models import FAMILIES

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


def test_the_example_of_a_method_is_one(monkeypatch, tmp_path):
    """The example, saved as a file of its own, is registered by being imported, and explains a ViT."""
    monkeypatch.setattr(METHODS, "entries", methods.all_methods())  # put back afterwards
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(compile(example, str(tmp_path / "my_method.py"), "exec"), {"__name__": "my_method"})
    family = FAMILIES["timm_vit"]
    once = mhex.explain(family.model(), family.inputs(2), "my-method", target=1)
    assert once.scores.shape == (2, *family.grid)
    assert float(once.scores.abs().max()) > 0
    twice = mhex.explain(family.model(), family.inputs(2), "my-method", target=1, an_option=2.0)
    torch.testing.assert_close(twice.scores, 2 * once.scores)
    assert methods.get_method("my-method").option_help == {"an_option": "What it does."}


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
