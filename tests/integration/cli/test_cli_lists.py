from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import Run

import mhex


def test_methods_are_those_of_the_registry(run: Run) -> None:
    result = run("methods")
    assert result.exit_code == 0
    heading, *lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert heading[:2] == ["name", "idea"]
    assert [line[0] for line in lines] == [row["name"] for row in mhex.list_methods()]
    assert all(len(line) == len(heading) for line in lines)
    assert "start_block=1" in result.stdout


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize(
    "command", [("methods",), ("metrics",), ("models",), ("bench", "--list"), ("train", "--list"), ("data", "list")]
)
def test_lists_fit_a_terminal_and_break_no_name(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], width: int
) -> None:
    rows = [line.split("\t") for line in run(*command).stdout.splitlines()][1:]
    monkeypatch.setattr("mhex.cli._console._width", lambda: width)
    shown = run(*command).stdout
    assert max(map(len, shown.splitlines())) <= width
    assert {row[0] for row in rows} <= {line.split("  ")[0] for line in shown.splitlines()}
    assert {word for row in rows for cell in row[1:] for word in cell.split()} <= set(shown.split())


def test_methods_as_json(run: Run) -> None:
    rows = json.loads(run("methods", "--json").stdout)
    assert [row["name"] for row in rows] == [row["name"] for row in mhex.list_methods()]
    assert {row["name"]: row["options"] for row in rows}["gae"] == {"start_block": 1}


def test_models_are_listed_with_accuracy_size_and_licence(run: Run, zoo: Path) -> None:
    result = run("models")
    assert result.exit_code == 0
    for words in ("zoo:pets-vit", "zoo:pets-resnet10t", "breed 16.7 %, cat dog 50.0 % (test, 12 images)", "MB"):
        assert words in result.stdout
    assert "CC BY-SA 4.0" in result.stdout


def test_models_as_json(run: Run, zoo: Path) -> None:
    rows = json.loads(run("models", "--json").stdout)
    assert {row["name"] for row in rows} == {"zoo:pets-vit", "zoo:pets-resnet10t"}
    assert rows[0]["data"]["licence"] == "CC BY-SA 4.0"


def test_an_empty_zoo_is_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mhex.zoo.shipped.WEIGHTS", tmp_path)
    result = run("models")
    assert result.exit_code == 0
    assert "empty" in result.stderr
    assert json.loads(run("models", "--json").stdout) == []


def test_help_names_the_commands_and_examples(run: Run) -> None:
    assert "3, done with losses, which are named on standard error;" in " ".join(run("--help").stdout.split())
    for arguments in (("--help",), ("-h",), ()):
        result = run(*arguments)
        assert result.exit_code == 0
        for words in ("explain", "demo", "methods", "models", "mhex explain cat.jpg"):
            assert words in result.stdout


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version").stdout == f"mhex {mhex.__version__}\n"
