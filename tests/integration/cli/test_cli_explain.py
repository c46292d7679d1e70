from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import FAST, Run, one_sentence
from PIL import Image

import mhex
from mhex.errors import NotFiniteError, NotFiniteOutputError


def _names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_one_photo_by_default(run: Run, zoo: Path, cat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("explain", cat)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    files = tmp_path / "out" / "explain"
    assert _names(files) == ["cat.conservative-lrp.png"]
    assert Image.open(files / "cat.conservative-lrp.png").size[0] > 300
    with Image.open(cat) as photo:
        explanation = mhex.explain(mhex.load("zoo:pets-vit"), photo)
    assert explanation.target_names(0)[0] in result.stdout
    assert f"{100 * float(explanation.probabilities.max()):.1f} %" in result.stdout
    assert "cat.conservative-lrp.png" in result.stdout


def test_several_methods_and_classes_are_compared(run: Run, zoo: Path, cat: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    result = run("explain", cat, "--method", "gae,rollout", "--target", "Pug,0", "--out", out, "--html")
    assert result.exit_code == 0, result.output
    assert _names(out) == ["cat.comparison.png", "cat.gae.png", "cat.rollout.png", "index.html"]
    for words in ("Pug", "Bengal", "rollout", "cat.comparison.png"):
        assert words in result.stdout
    assert "index.html" in result.stderr
    page = (out / "index.html").read_text(encoding="utf-8")
    assert page.count("<img") == 1
    assert "zoo:pets-vit" in page


def test_equal_names_in_different_folders_do_not_overwrite_each_other(
    run: Run, zoo: Path, cat: Path, tmp_path: Path
) -> None:
    other = tmp_path / "more" / "cat.jpg"
    other.parent.mkdir()
    Image.new("RGB", (50, 90), "green").save(other)
    out = tmp_path / "o"
    result = run("explain", cat, other, "--out", out)
    assert result.exit_code == 0, result.output
    assert _names(out) == ["cat-2.conservative-lrp.png", "cat.conservative-lrp.png"]
    assert (out / "cat.conservative-lrp.png").read_bytes() != (out / "cat-2.conservative-lrp.png").read_bytes()


def test_a_photo_is_never_overwritten(run: Run, zoo: Path, cat: Path) -> None:
    trap = cat.with_name("cat.conservative-lrp.png")
    shutil.copy(cat, trap)
    before = trap.read_bytes()
    assert "overwrite" in one_sentence(run("explain", cat, trap, "--out", cat.parent))
    assert trap.read_bytes() == before


def test_all_methods_says_which_are_left_out(
    run: Run, zoo: Path, cat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "o"
    monkeypatch.setattr("mhex.viz.save_figure", lambda drawing, path: path.touch())  # drawing takes long
    result = run("explain", cat, "--model", "zoo:pets-resnet10t", "--method", "all", *FAST, "--out", out)
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stderr.splitlines() if "gae" in line]
    assert "left out" in line
    assert "attention" in line
    assert "cat.gradcam.png" in _names(out)
    assert "cat.gae.png" not in _names(out)


def test_a_model_without_heads_is_told_how_to_get_some(run: Run, zoo: Path, cat: Path, tmp_path: Path) -> None:
    sentence = one_sentence(run("explain", cat, "--method", "mhex", "--out", tmp_path / "o"))
    assert "mhex.attach(model, num_classes)" in sentence
    assert "gae" in sentence


def test_random_weights_are_warned_of(run: Run, cat: Path, tmp_path: Path) -> None:
    result = run("explain", cat, "--model", "timm:test_resnet", "--method", "gradcam", "--out", tmp_path / "o")
    assert result.exit_code == 0, result.output
    assert "random" in result.stderr


def test_options_and_seeds_reach_the_method(run: Run, zoo: Path, cat: Path, tmp_path: Path) -> None:
    for name, option in (("a", "start_block=1"), ("b", "start_block=2")):
        assert run("explain", cat, "--method", "gae", "--option", option, "--out", tmp_path / name).exit_code == 0
    assert (tmp_path / "a" / "cat.gae.png").read_bytes() != (tmp_path / "b" / "cat.gae.png").read_bytes()
    for seed in ("1", "2"):
        options = ("--method", "rise", "--option", "n=4", "--seed", seed)
        assert run("explain", cat, *options, "--out", tmp_path / seed).exit_code == 0
    assert (tmp_path / "1" / "cat.rise.png").read_bytes() != (tmp_path / "2" / "cat.rise.png").read_bytes()


def test_names_are_shown_as_they_are(run: Run, zoo: Path, cat: Path, tmp_path: Path) -> None:
    odd = cat.with_name("a [red] <b>cat<b>.png")
    shutil.copy(cat, odd)
    result = run("explain", odd, "--out", tmp_path / "o", "--html")
    assert result.exit_code == 0, result.output
    assert "[red] <b>cat<b>.conservative-lrp.png" in result.stdout
    assert "<b>" not in (tmp_path / "o" / "index.html").read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such file names")
def test_names_that_are_no_text(run: Run, zoo: Path, cat: Path, tmp_path: Path) -> None:
    odd = cat.with_name("caf\udce9.png")  # a Latin-1 name on a UTF-8 system
    shutil.copy(cat, odd)
    result = run("explain", odd, "--out", tmp_path / "o", "--html")
    assert result.exit_code == 0, result.output
    assert "caf?.conservative-lrp.png" in result.stdout


def test_texts_are_explained_and_drawn(run: Run, bert_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    result = run(
        "explain", "--text", "a fine film", "--text", "a dull film", "--model", f"hf:{bert_folder}", "--method",
        "gae,attention", "--target", "good,bad", "--out", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert {"text-1.gae.png", "text-1.comparison.png", "text-2.attention.png", "index.html"} <= set(_names(out))
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "fine" in page
    assert "dull" in page
    assert "good" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "got neither"),
        (("{cat}", "--text", "a film"), "got both"),
        (("--text", "a film"), "zoo:pets-vit reads photos, not text"),
        (("--text", " ", "--model", "hf:{bert}"), "blank"),
        (("{cat}", "--model", "hf:{bert}"), "reads text, not photos"),
        (("{cat}", "--model", "pets-vit"), "zoo:NAME"),
        (("{cat}", "--model", "zoo:pets-vitt"), "Did you mean 'pets-vit'"),
        (("{cat}", "--method", "gaee"), "Did you mean 'gae'"),
        (("{cat}", "--method", "gae", "--model", "zoo:pets-resnet10t"), "Methods that can: "),
        (("{cat}", "--target", "Pugg"), "Did you mean 'Pug'"),
        (("{cat}", "--target", "6"), "from 0 to 5"),
        (("{cat}", "--target", "top9"), "top6"),
        (("{cat}", "--method", "gae", "--option", "start_block=9"), "block"),
        (("{cat}", "--method", "gae", "--option", "alpha=9"), "start_block=1"),
        (("{cat}", "--option", "start_block=9"), "Expected --method with --option"),
        (("{cat}", "--outputs", "shares"), "Expected logits or probabilities after --outputs"),
        (("{cat}", "--outputs", "probabilities"), "Expected outputs between 0 and 1"),
        (("{cat}", "--device", "toaster"), "Expected cpu or cuda"),
        (("{cat}", "--seed", "x"), "--seed"),
        (("{cat}", "--methd", "gae"), "--method"),
        (("{cat}.jpg",), "is no file; check the path"),
        (("{cat}", "--out", "{cat}/below"), "Cannot write to"),
    ],
)
def test_mistakes_get_one_sentence(
    run: Run, zoo: Path, bert_folder: Path, cat: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    filled = [a.replace("{cat}", str(cat)).replace("{bert}", str(bert_folder)) for a in arguments]
    if "--out" not in filled:
        filled += ["--out", str(tmp_path / "o")]
    assert words in one_sentence(run("explain", *filled))


@pytest.fixture
def broken(cat: Path) -> list[Path]:
    """A photo that is cut off, and one that is empty."""
    paths = [cat.with_name("broken.png"), cat.with_name("empty.png")]
    paths[0].write_bytes(cat.read_bytes()[:60])
    paths[1].write_bytes(b"")
    return paths


def test_damaged_photos_are_told_at_the_end(run: Run, zoo: Path, cat: Path, broken: list[Path], tmp_path: Path) -> None:
    last = cat.with_name("last.png")
    shutil.copy(cat, last)
    result = run("explain", broken[0], cat, broken[1], last, "--method", "gae", "--out", tmp_path / "o", "--html")
    assert result.exit_code == 3
    assert _names(tmp_path / "o") == ["cat.gae.png", "index.html", "last.gae.png"]
    assert "last.gae.png" in result.stdout
    page, first, second, others = result.stderr.splitlines()
    assert page.endswith("index.html.")
    assert first.startswith(f"mhex: not explained: The photo {broken[0]} is damaged or cut off")
    assert second == f"mhex: not explained: Expected a photo, but {broken[1]} is empty (0 bytes)."
    assert others == f"mhex: The pictures of all others are in {tmp_path / 'o'}."


def test_damaged_photos_alone_are_a_mistake(run: Run, zoo: Path, broken: list[Path], tmp_path: Path) -> None:
    assert "broken.png is damaged" in one_sentence(run("explain", broken[0], "--out", tmp_path / "o"))
    told = one_sentence(run("explain", *broken, "--out", tmp_path / "o"))
    assert told.startswith("mhex: None of 2 inputs can be explained: The photo ")


def test_scores_that_are_not_finite_cost_their_photo(
    run: Run, zoo: Path, cat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dark = cat.with_name("dark.png")
    Image.new("RGB", (40, 40)).save(dark)
    real = mhex.explain

    def fussy(model: Any, inputs: Any, method: str, *rest: Any, **options: Any) -> Any:
        if max(inputs[0].convert("L").getdata()) == 0:
            raise NotFiniteOutputError([0], 1)
        if method == "rollout":
            raise NotFiniteError("Method 'rollout' gave scores that are not finite.", None)
        return real(model, inputs, method, *rest, **options)

    monkeypatch.setattr(mhex, "explain", fussy)
    result = run("explain", dark, cat, "--method", "gae,rollout,attention", "--out", tmp_path / "o")
    assert result.exit_code == 3
    assert _names(tmp_path / "o") == ["cat.attention.png", "cat.comparison.png", "cat.gae.png"]
    assert [line.split(": ", 2)[1:] for line in result.stderr.splitlines()[:2]] == [
        ["not explained", f"{dark}: The model's scores are not finite for this input, so there is nothing to explain."],
        ["not explained", f"{cat} by rollout: Method 'rollout' gave scores that are not finite."],
    ]
    sentence = one_sentence(run("explain", cat, "--method", "rollout", "--out", tmp_path / "o"))
    assert "gave scores that are not finite" in sentence


def test_mistakes_end_at_the_first_photo(
    run: Run, zoo: Path, cat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, calls = cat.with_name("other.png"), []
    shutil.copy(cat, other)
    real = mhex.explain
    monkeypatch.setattr(mhex, "explain", lambda *args, **options: calls.append(1) or real(*args, **options))
    wrong = ("--method", "gae", "--option", "start_block=9")
    assert "block" in one_sentence(run("explain", cat, other, *wrong, "--out", tmp_path / "o"))
    assert len(calls) == 1


def test_maps_of_single_heads_are_drawn(run: Run, zoo: Path, cat: Path, tmp_path: Path) -> None:
    options = ("--method", "gradtoken", "--option", "per_head=true", "--out", tmp_path / "o")
    assert run("explain", cat, *options).exit_code == 0
    assert sorted(file.name for file in (tmp_path / "o").iterdir()) == ["cat.gradtoken.layers.png", "cat.gradtoken.png"]


def test_ctrl_c_says_what_is_kept(
    run: Run, zoo: Path, cat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls, other = mhex.explain, [], cat.with_name("other.png")
    shutil.copy(cat, other)

    def interrupt(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) != 2:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(mhex, "explain", interrupt)
    result = run("explain", cat, "--out", tmp_path / "o")
    assert result.exit_code == 130
    assert result.output == "mhex: Stopped. Nothing is explained yet; the same command begins anew.\n"
    result = run("explain", cat, other, "--method", "gae", "--out", tmp_path / "o")
    assert result.exit_code == 130
    assert result.output == (
        f"mhex: Stopped. 1 of 2 inputs are explained, with their pictures in {tmp_path / 'o'}; to go on, give the "
        f"others alone: {other}\n"
    )
    assert _names(tmp_path / "o") == ["cat.gae.png"]


def test_our_own_bugs_are_not_hidden(
    run: Run, zoo: Path, cat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(mhex, "explain", fail)
    with pytest.raises(ZeroDivisionError):
        run("explain", cat, "--out", tmp_path / "o")


def test_the_prediction_stands_beside_a_target_that_was_asked_for(
    run: Run, zoo: Path, cat: Path, tmp_path: Path
) -> None:
    with Image.open(cat) as photo:
        name, share = mhex.explain(mhex.load("zoo:pets-vit"), photo).prediction(0)  # type: ignore[misc]
    plain = run("explain", cat, "--out", tmp_path / "o")
    asked = run("explain", cat, "--target", "Pug", "--method", "gae,rollout", "--out", tmp_path / "o", "--html")
    assert "predicted" not in plain.stdout
    assert asked.exit_code == 0
    assert asked.stdout.count(f"{name}, {100 * share:.1f} %") == 2
    assert f"Predicted: {name}" in (tmp_path / "o" / "index.html").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:Texts of up to")
def test_a_text_that_was_cut_is_told(run: Run, bert_folder: Path, tmp_path: Path) -> None:
    given = ("--model", f"hf:{bert_folder}", "--method", "attention", "--out", tmp_path)
    result = run("explain", "--text", "fine", "--text", "a fine film " * 400, *given)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stderr.splitlines() if "cut after" in line]
    assert len(lines) == 1
    assert lines[0].startswith("mhex: text-2: cut after ")
    assert (tmp_path / "index.html").read_text(encoding="utf-8").count("cut after") == 1
