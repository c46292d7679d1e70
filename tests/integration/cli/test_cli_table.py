from __future__ import annotations

from mhex.cli._console import Table

LONG = Table(
    ("input", "method", "class", "file"),
    [
        ("photos/cat.png", "integrated-gradients", "Staffordshire Bull Terrier", "out/a folder/with spaces/cat.png"),
        ("photos/dog.png", "gae", "Pug", "o.png"),
    ],
)


def test_a_table_with_room_is_in_one_piece() -> None:
    assert LONG.fitted(120).splitlines() == [
        "input           method                class                       file",
        "-" * 98,
        "photos/cat.png  integrated-gradients  Staffordshire Bull Terrier  out/a folder/with spaces/cat.png",
        "photos/dog.png  gae                   Pug                         o.png",
    ]


def test_columns_without_room_are_below_and_whole() -> None:
    assert LONG.fitted(70).splitlines() == [
        "input           method                class",
        "-" * 64,
        "photos/cat.png  integrated-gradients  Staffordshire Bull Terrier",
        "    file: out/a folder/with spaces/cat.png",
        "photos/dog.png  gae                   Pug",
        "    file: o.png",
    ]


def test_a_long_path_overflows_in_a_line_of_its_own() -> None:
    path = "/".join(["folder with a long name"] * 9)
    (line,) = [line for line in Table(("name", "file"), [("cat", path)]).fitted(80).splitlines() if "folder" in line]
    assert line == f"    file: {path}"


def test_descriptions_and_lists_are_broken_between_words() -> None:
    table = Table(
        ("name", "what", "options"),
        [("gae", "A description of several words that does not fit", ", ".join(f"option_{k}=1" for k in range(9)))],
        prose=("what", "options"),
    )
    assert table.fitted(40).splitlines()[2:] == [
        "gae",
        "    what: A description of several words",
        "        that does not fit",
        "    options: option_0=1, option_1=1,",
        "        option_2=1, option_3=1,",
        "        option_4=1, option_5=1,",
        "        option_6=1, option_7=1,",
        "        option_8=1",
    ]


def test_short_cells_share_a_line() -> None:
    table = Table(("name", "a", "b"), [("n" * 30, "x" * 8, "y" * 8)])
    assert table.fitted(40).splitlines()[2:] == ["n" * 30 + "  " + "x" * 8, "    b: yyyyyyyy"]
    assert table.fitted(36).splitlines()[2:] == ["n" * 30, "    a: xxxxxxxx | b: yyyyyyyy"]


def test_letters_that_take_two_columns_are_counted() -> None:
    lines = Table(("name", "class"), [("日本", "a"), ("cat", "b")]).fitted(80).splitlines()
    assert lines[2:] == ["日本  a", "cat   b"]


def test_rows_for_other_programs() -> None:
    assert LONG.plain().splitlines()[2].split("\t") == ["photos/dog.png", "gae", "Pug", "o.png"]
