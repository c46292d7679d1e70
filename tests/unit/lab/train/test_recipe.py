"""Recipe files: typed, checked, and every mistake one sentence that names file and key."""

import re
from pathlib import Path

import pytest

from mhex._schema import build
from mhex.errors import ArgumentError, MhexError
from mhex.lab.config.recipe import (
    RecipeAugment,
    RecipeData,
    RecipeDistillation,
    RecipeFit,
    RecipeHeads,
    RecipeModel,
    RecipeShipping,
    RecipeStop,
    RecipeTraining,
    RecipeUnlabelled,
    TrainingRecipe,
    find_recipe,
    packaged_recipes,
    read_recipe,
)
from mhex.lab.config.schema import read_yaml
from mhex.lab.train import dry_run
from mhex.lab.train.dry_run import check_recipe
from mhex.lab.train.run import with_needs
from support.training import recipe_dict, write_recipe


def test_a_trial_takes_batches_that_can_be_accumulated(recipe):
    small = recipe(train={"batch": 6, "accumulate": 3}).smoke()
    assert small.training.accumulate == 3
    assert small.training.batch % 3 == 0


def test_values_arrive_in_their_types(recipe):
    made = recipe(
        train={"rate": "1e-3", "betas": [0.9, 0.99], "precision": False, "early_stopping": {"patience": 2}},
        augment={"scale": [0.5, 1]},
        data={"validation": 0.25},
        heads={"where": ["layer1.0", "layer2.0"], "decay": 1},
    )
    assert made.train.rate == 0.001
    assert made.train.betas == (0.9, 0.99)
    assert made.train.precision == "no"  # YAML reads a bare `no` as false
    assert made.train.early_stopping.watch == "loss"
    assert made.augment.scale == (0.5, 1.0)
    assert made.data.validation == 0.25
    assert made.heads.where == ("layer1.0", "layer2.0")
    assert made.distil is None
    assert build(TrainingRecipe, made.as_dict(), "x") == made


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": {"epocs": 3}}, r"small\.yaml: Unknown key in train 'epocs'\. Did you mean 'epochs'"),
        ({"trian": {}}, r"small\.yaml: Unknown key 'trian'\. Did you mean 'train'"),
        ({"train": {"epochs": "ten"}}, r"small\.yaml: train\.epochs should be a whole number of at least 1, not 'ten'"),
        ({"train": {"epochs": True}}, r"train\.epochs should be a whole number of at least 1, not True"),
        ({"train": {"epochs": -1}}, r"train\.epochs should be a whole number of at least 1, not -1"),
        ({"train": {"batch": 0}}, r"train\.batch should be a whole number of at least 1, not 0"),
        ({"train": {"batch": 2.5}}, r"train\.batch should be a whole number .*not 2\.5"),
        ({"train": {"rate": 0}}, r"train\.rate should be a number above 0, not 0"),
        ({"train": {"rate": 10**400}}, r"train\.rate should be a number"),
        ({"train": {"rate": ".nan"}}, r"train\.rate should be a number"),
        ({"train": {"warmup": 1.5}}, r"train\.warmup should be a number of at least 0 and of at most 1, not 1\.5"),
        ({"train": {"schedule": "cosin"}}, r"train\.schedule should be one of cosine, .*not 'cosin'"),
        ({"train": {"betas": [0.9]}}, r"train\.betas should be a list \(2 times a number .*\) or null, not \[0\.9\]"),
        ({"train": {"betas": [0.9, 1.0]}}, r"train\.betas should be .*below 1"),
        ({"train": {"early_stopping": {}}}, r"the key train\.early_stopping\.patience is missing"),
        ({"train": {"early_stopping": 3}}, r"train\.early_stopping should be a mapping"),
        ({"data": {"validation": 1.0}}, r"data\.validation should be .*below 1 or a text or null, not 1"),
        ({"data": {"side": "big"}}, r"data\.side should be a whole number of at least 8 and of at most 4096 or null"),
        ({"augment": {"cutmix": 0.8, "mixup": 0.8}}, r"small\.yaml: augment: .*sum to at most 1"),
        ({"augment": {"flip": 2}}, r"augment\.flip should be .*at most 1, not 2"),
        ({"distil": {"share": 0.5}}, r"the key distil\.teachers is missing"),
        ({"name": "../evil"}, r"name is the name of a folder too"),
        ({"title": None}, r"the key title is missing; expected a text"),
        ({"heads": {"preset": "papper"}}, r"heads\.preset should be one of paper, identity"),
    ],
)
def test_mistakes_in_one_key(recipe, changes, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        recipe(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": {"name": "blod"}}, r"small\.yaml: data\.name: Unknown data set 'blod'\. Did you mean 'blood'"),
        ({"data": {"name": "chestmnist"}}, r"data\.name: ChestMNIST cannot be learned.*of several classes"),
        ({"data": {"name": "voc"}}, r"data\.name: PASCAL VOC 2012 segmentation cannot be learned.*of pixels"),
        ({"data": {"name": "photos"}}, r"data\.name: Photos of 106.*for judging alone"),
        ({"data": {"side": None}}, r"data\.side is missing"),
        ({"data": {"name": "ag_news"}}, r"data\.length is missing"),
        ({"data": {"name": "ag_news", "length": 8}, "augment": {}}, r"augment is for images"),
        ({"train": {"optimizer": "adamm"}}, r"train\.optimizer: Unknown optimizer 'adamm'.*'adam"),
        ({"model": {"architecture": "resnet81"}}, r"model\.architecture: Unknown timm model 'resnet81'\. Did you mean"),
        ({"model": {"architecture": "qqqqqqqq"}}, r"Unknown timm model 'qqqqqqqq'.*see timm.list_models"),
        ({"model": {"source": "torchvision", "architecture": "resnet81"}}, r"Unknown torchvision model"),
        ({"model": {"source": "torchvision", "architecture": "fcn_resnet50"}}, r"Unknown torchvision model"),
        ({"model": {"source": "hf-folder", "architecture": "/nowhere"}}, r"'/nowhere' is none: name another"),
        ({"train": {"batch": 9, "accumulate": 2}}, r"train\.batch should be a multiple of train\.accumulate"),
        ({"train": {"freeze": "host"}}, r"train\.freeze: host .*no heads"),
        ({"train": {"freeze": "host"}, "heads": {}}, r"own classifier answers .*nothing trains it"),
        ({"heads": {"preset": "probe", "classifier": False}}, r"own classifier answers .*nothing trains it"),
        ({"train": {"compile": True}, "heads": {}}, r"train\.compile does not go with heads"),
        (
            {"data": {"name": "pets"}, "train": {"early_stopping": {"patience": 1}}},
            r"train\.early_stopping needs a validation",
        ),
        ({"data": {"test": "train"}}, r"data\.split is train and data\.test is train, which share samples"),
        ({"data": {"validation": "test"}}, r"data\.test is test and data\.validation is test"),
        ({"data": {"split": "val"}}, r"data\.split is val and data\.validation is val"),
        ({"data": {"split": "all", "validation": 0.1}}, r"data\.split is all and data\.test is test"),
        (
            {"ship": {}, "model": {"source": "torchvision", "architecture": "resnet18"}},
            r"ship is for mhex\.load, which reads.*not torchvision",
        ),
        ({"distil": {"teachers": []}}, r"distil\.teachers should be a list .*not \[\]"),
        ({"model": {"start": "small"}}, r"own weights"),
    ],
)
def test_mistakes_between_keys(recipe, changes, words):
    with pytest.raises(MhexError, match=words):
        check_recipe(recipe(**changes), "small.yaml")


def test_a_reader_may_change_what_it_gets():
    """A text is parsed once, and every reader has values of its own."""
    text = "train: {rate: 0.1, betas: [0.9, 0.99]}"
    first = read_yaml(text)
    first["train"]["betas"].append(1)
    first["train"]["rate"] = 5
    assert read_yaml(text) == {"train": {"rate": 0.1, "betas": [0.9, 0.99]}}


def test_a_sound_recipe_passes(recipe):
    assert list(dry_run._mistakes(recipe())) == []
    check_recipe(recipe(), "small.yaml")


def test_every_key_is_in_the_documentation():
    text = (Path(__file__).parents[4] / "docs" / "train.md").read_text(encoding="utf-8")
    sections = (RecipeData, RecipeModel, RecipeHeads, RecipeTraining, RecipeStop, RecipeAugment, RecipeDistillation)
    for section in (*sections, RecipeShipping, RecipeFit, RecipeUnlabelled):
        for name in section.model_fields:
            assert re.search(rf"\b{name}\b", text), f"{section.__name__}.{name}"


def test_overrides_change_keys_and_wrong_ones_are_named(recipe):
    made = recipe("train.epochs=7", "augment.flip=0", "data.mean=[0, 0, 0]", "train.ema=null")
    assert (made.train.epochs, made.augment.flip, made.data.mean) == (7, 0.0, (0.0, 0.0, 0.0))
    for wrong, words in {
        "train.epochs": "section.key=value",
        "train.epochs=": "whole number",
        "name.x=1": "not a section",
        "train.epoch=1": "Did you mean 'epochs'",
        "train.epochs=[": "not valid YAML",
        f"train.epochs={5000 * '['}": "nested more than 64 levels deep",
    }.items():
        with pytest.raises(ArgumentError, match=words):
            recipe(wrong)


def test_files_that_are_not_recipes(tmp_path):
    (tmp_path / "a.yaml").write_text("a: [")
    (tmp_path / "b.yaml").write_text("- 1")
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ArgumentError, match=r"a\.yaml is not valid YAML"):
        read_recipe(tmp_path / "a.yaml")
    with pytest.raises(ArgumentError, match=r"b\.yaml: a recipe should be a mapping"):
        read_recipe(tmp_path / "b.yaml")
    with pytest.raises(ArgumentError, match="cannot be read"):
        read_recipe(tmp_path / "c.yaml")
    with pytest.raises(ArgumentError, match="no recipe file"):
        find_recipe(str(tmp_path / "none.yaml"))
    with pytest.raises(ArgumentError, match=r"Unknown recipe 'pets-vitt'.*'pets-vit'"):
        find_recipe("pets-vitt")


# Each level is ten times the one before: a trillion values in all.
ALIASES = "name: a\na0: &a0 [x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 13)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train:\n  epochs: 1\n  epochs: 50\n", r"x\.yaml: the key 'epochs' in line 3 is written twice\."),
        ("name: a\nname: b\n", r"the key 'name' in line 2 is written twice"),
        ("name: a\nheads:\n", r"the key 'heads' in line 2 has no value; write one, \{\} .* or null"),
        ("train: {clip: }\n", r"the key 'clip' in line 1 has no value"),
        ("name: " + 5000 * "[", r"x\.yaml: line 1 is nested more than 64 levels deep\."),
        ("".join(f"{place * ' '}a:\n" for place in range(2000)), r"line 6\d is nested more than 64 levels deep"),
        ("name: a\ntrain: &self {clip: *self}\n", r"\*self in line 2 stands inside what it stands for"),
        (ALIASES, r"x\.yaml: with \*a4 in line 7, aliases stand for more than 100,000 values\."),
        ("name: a\nmodel: {arguments: {1: 2}}\n", r"x\.yaml: the key '1' in line 2 should be a text"),
        ("name: 2026-13-01\n", r"x\.yaml: a value cannot be read: month must be in 1\.\.12"),
    ],
)
def test_keys_that_mislead_are_refused(tmp_path, text, words):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ArgumentError, match=words):
        read_recipe(tmp_path / "x.yaml")


def test_null_is_none_and_an_empty_section_has_defaults(tmp_path):
    path = write_recipe(tmp_path / "x.yaml")
    path.write_text(path.read_text() + "heads: {}\naugment: null\n")
    made = read_recipe(path)
    assert made.heads == RecipeHeads()
    assert made.augment is None
    assert read_recipe(path, ["heads=null"]).heads is None
    # A merge may be overwritten: that is what it is for.
    path.write_text(path.read_text().replace("  source: timm", "  <<: {source: zoo}\n  source: timm", 1))
    assert read_recipe(path).model.source == "timm"


def test_the_digest_follows_what_decides_the_outcome(recipe):
    plain = recipe().digest()
    assert recipe(title="Another", ship={}, data={"test": "val", "validation": None}).digest() == plain
    assert recipe(seed=6).digest() != plain
    assert recipe(train={"warmup": 0.06}).digest() != plain


def test_needs_come_first_and_each_once(tmp_path):
    write_recipe(tmp_path / "one.yaml", name="one")
    write_recipe(tmp_path / "two.yaml", name="two", model={"start": "one"})
    last = build(TrainingRecipe, recipe_dict(model={"start": "two"}, distil={"teachers": ["one", "two"]}), "x")
    assert [one.name for one in with_needs(last, tmp_path)] == ["one", "two", "small"]
    write_recipe(tmp_path / "one.yaml", name="one", model={"start": "two"})
    with pytest.raises(ArgumentError, match="circle: small -> two -> one -> two"):
        with_needs(last, tmp_path)
    write_recipe(tmp_path / "other.yaml", name="renamed")
    last = build(TrainingRecipe, recipe_dict(model={"start": "renamed"}), "x")
    (tmp_path / "notes.yaml").write_text("- no recipe: [")
    assert [one.name for one in with_needs(last, tmp_path)] == ["renamed", "small"]
    write_recipe(tmp_path / "third.yaml", name="renamed")
    with pytest.raises(ArgumentError, match=r"other\.yaml and third\.yaml both hold a recipe 'renamed'"):
        with_needs(last, tmp_path)
    write_recipe(tmp_path / "renamed.yaml", name="renamed", seed=9)
    assert with_needs(last, tmp_path)[0].seed == 9
    last = build(TrainingRecipe, recipe_dict(model={"start": "nobody"}), "x")
    with pytest.raises(ArgumentError, match="Unknown recipe 'nobody'"):
        with_needs(last, tmp_path)


@pytest.mark.parametrize("name", packaged_recipes())
def test_packaged_recipes_are_sound(name, monkeypatch):
    made = read_recipe(packaged_recipes()[name])
    assert made.name == name
    # A BERT folder has to be placed by the user, which is another test.
    if made.model.source != "hf-folder":
        check_recipe(made, f"{name}.yaml")
        check_recipe(made.smoke(), f"{name}.yaml")
    assert with_needs(made, packaged_recipes()[name].parent)[-1] == made
