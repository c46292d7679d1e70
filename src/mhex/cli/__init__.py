"""The command line: the commands, and what happens when one goes wrong.

One file holds one command; it calls public functions of the library and nothing else. Commands import what they need
when they run, so that `mhex --help` is quick.
"""

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mhex.cli import bench, data, demo, explain, lists, recommend, report, train
from mhex.cli._console import STOPPED, complain, warning_lines
from mhex.errors import MhexError

__all__ = ["app", "main"]

EXAMPLES = """
mhex demo
mhex explain cat.jpg --target top2
mhex explain *.jpg --model timm:resnet18:weights.safetensors --method all
mhex explain --text "A fine film." --model hf:my-bert
Exit codes: 0, all is done; 2, a mistake in the command, or nothing could be done; 3, done with losses, which are \
named on standard error; 130, stopped by Ctrl-C.
"""

# Typer brings click along under different names in different versions; its base class of usage mistakes is in all.
_UsageMistake: type[Exception] = typer.BadParameter.__mro__[2]


class Commands(TyperGroup):
    """Commands whose mistakes are printed in one sentence, with the exit codes of `EXAMPLES`.

    Only errors that mhex raises on purpose are caught; a bug of mhex still shows its traceback.
    """

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command line and leave the program with its exit code."""
        extra["standalone_mode"] = False
        try:
            with warning_lines():
                code = super().main(*args, **extra)
        except MhexError as error:
            complain(str(error))
            sys.exit(2)
        except _UsageMistake as error:
            context = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "mhex"
            complain(f"{error.format_message().rstrip('.')}; see `{command} --help`.")  # type: ignore[attr-defined]
            sys.exit(2)
        except (KeyboardInterrupt, typer.Abort):
            sys.exit(STOPPED)
        sys.exit(code if isinstance(code, int) else 0)


def _epilog(examples: str) -> str:
    """The text below the help of a command: a paragraph for each line."""
    return "Examples:\n\n" + examples.strip().replace("\n", "\n\n")


app = typer.Typer(
    cls=Commands,
    help="Explain neural networks, and prove the explanations.",
    epilog=_epilog(EXAMPLES),
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from mhex import __version__

        typer.echo(f"mhex {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def trunk(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Explain neural networks, and prove the explanations."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line on the program's arguments; the entry point of `mhex`."""
    app(prog_name="mhex")


app.command("explain", epilog=_epilog(explain.EXAMPLES))(explain.command)
app.command("demo")(demo.command)
app.command("methods")(lists.methods)
app.command("metrics")(lists.metrics)
app.command("report", epilog=_epilog(report.EXAMPLES))(report.command)
app.add_typer(lists.models_app, name="models")
app.add_typer(data.data_app, name="data")
app.command("bench", epilog=_epilog(bench.EXAMPLES))(bench.command)
app.command("recommend", epilog=_epilog(recommend.EXAMPLES))(recommend.command)
app.command("train", epilog=_epilog(train.EXAMPLES))(train.command)
