"""The registry: one decorator, everything else follows."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mhex import methods
from mhex.capture import Anatomy, Needs
from mhex.errors import ArgumentError, UnsupportedModelError
from mhex.registry import METHODS, register

NAMES = {
    "agcam",
    "attcat",
    "attention",
    "attention-flow",
    "attention-gradcam",
    "cdam",
    "cdam-integrated",
    "cdam-smooth",
    "eigencam",
    "gae",
    "gradcam",
    "gradcam++",
    "gradtoken",
    "input-x-gradient",
    "integrated-gradients",
    "layercam",
    "mhex",
    "transformer-attribution",
    "partial-lrp",
    "lrp",
    "guided-backprop",
    "conservative-lrp",
    "attnlrp",
    "abslrp",
    "occlusion",
    "rise",
    "rollout",
    "scorecam",
    "shap",
    "smoothgrad",
    "tokentm",
    "vit-cx",
}


def add(name="made-up", **changes):
    settings = {"title": "t", "paper": "p", "modalities": ("image",), "needs": Needs(), "signed": False,
                "class_specific": True, "passes": "F", "use": "u", "avoid": "a"}  # fmt: skip

    @register(name, **{**settings, **changes})
    def made_up(trace, y, *, strength: float = 1.0):
        """Formula.

        Args:
            trace: Of the pass.
            y: The score.
            strength: How strong it is,
                in two lines.
        """

    return made_up


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setattr(METHODS, "entries", methods.all_methods())
    add()
    return methods.get_method("made-up")


def test_the_promised_methods_are_there():
    rows = methods.list_methods()
    assert {row["name"] for row in rows} >= NAMES
    assert all(row["title"] and row["paper"] and row["needs"] and row["passes"] for row in rows)


def test_a_decorated_function_is_a_method(made_up):
    assert made_up.options == {"strength": 1.0}
    assert made_up.option_help == {"strength": "How strong it is, in two lines."}
    assert "made-up" in [row["name"] for row in methods.list_methods()]


def test_a_name_is_given_once(made_up):
    with pytest.raises(ArgumentError, match="registered already"):
        add()


def test_unknown_names_and_options_offer_known_ones():
    with pytest.raises(ArgumentError, match="Did you mean 'gradcam'"):
        methods.get_method("grad_cam")
    with pytest.raises(ArgumentError, match=r"no option 'start'.*start_block=1"):
        methods.get_method("rollout").check_options({"start": 2})


def test_refusal_names_methods_that_can():
    cnn = Anatomy("toy CNN", "image", no_attention="it has only convolutions")
    sentence = "'gae' cannot explain this toy CNN.*only convolutions.*input-x-gradient"
    with pytest.raises(UnsupportedModelError, match=sentence):
        methods.get_method("gae").check_serves(cnn)


def test_the_longest_text_is_still_served(made_up):
    method, model = replace(made_up, max_tokens=9), Anatomy("toy", "image")
    assert method.refusal(model, tokens=9) == ""
    assert method.refusal(model, tokens=10) == "it serves at most 9 tokens, and there are 10"


@pytest.mark.slow
def test_generated_pages_are_up_to_date():
    script = Path(__file__).parents[2] / "docs" / "generate.py"
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
