"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable

from typer.testing import Result

Run = Callable[..., Result]


def one_sentence(result: Result) -> str:
    """What a user's mistake must look like: exit code 2, nothing on standard output, one line on standard error."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("mhex: ")
    assert lines[0].endswith((".", "?"))
    return lines[0]


# Options by which methods of many passes take few.
FAST = [
    word
    for option in ("max_masks=2", "max_channels=2", "n=2", "steps=2", "max_evals=8", "patch=32")
    for word in ("--option", option)
]
