"""The command line. One file per command; each calls the library's public functions and nothing else.

Nothing heavy is imported here: commands import what they need when they run, so that `mhex --help` is quick.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line on the program's arguments; the entry point of `mhex`."""
    from mhex.cli._app import app

    app(prog_name="mhex")


__all__ = ["main"]
