"""Where the command prints, and how it tells a person what is wrong."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import typer
from rich.console import Console

from messaging.settings import given_environment
from stack import control, given, screen, sentences, services
from stack.child import INFRA
from stack.embedded import AlreadyRunning
from stack.layout import Layout
from stack.settings import StackSettings
from stack.status import complaints

PAPER = 1000
"""Columns where no terminal has its own: a table takes what it needs, so that no name or figure is cut or folded."""

out = Console(soft_wrap=True, width=None if sys.stdout.isatty() else PAPER)
err = Console(stderr=True, soft_wrap=True, width=None if sys.stderr.isatty() else PAPER)


class Chosen:
    """What the options before the command said. `data_dir` is None until they were read."""

    settings: StackSettings
    data_dir: Path | None = None


@contextmanager
def faults() -> Iterator[None]:
    """Say in a sentence what is wrong, without a traceback, and exit with 1 (130 after Ctrl-C)."""
    try:
        yield
    except AlreadyRunning as error:
        say(str(error))
        with suppress(control.NotRunning):
            _tell_of_running(error.data_dir)
        raise typer.Exit(1) from None
    except BrokenPipeError:
        # Whoever reads what is printed has gone: the framework ends the command without a word.
        raise
    except sentences.EXPECTED as error:
        say(sentences.told(error))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _tell_of_running(data_dir: Path) -> None:
    try:
        for complaint in complaints(control.status(data_dir).ill):
            say(complaint)
        say(settings_kept(data_dir))
        err.print(screen.addresses(control.endpoints(data_dir)))
    except control.ControlFailed as fault:
        say(str(fault))


def warn_of_unused() -> None:
    """Name each setting that has no effect: nothing reads it (misspelt, most likely), or the stack sets it itself."""
    for name, likely in given.unknown(given_environment()).items():
        meant = f" Is {likely} meant?" if likely else ""
        say(f"{name} is set, and no part of the stack has such a setting.{meant}")
    for name in given.ignored(given_environment()):
        port = " The ports are fixed with --port NAME=N." if name == "WORKBOT_PORT" else ""
        say(f"{name} is set, and not used: the stack sets it for its services itself.{port}")


def tell_of_missing(name: str, data_dir: Path) -> None:
    """Name what a part must wait for before it is ready. Raises NotRunning."""
    current = control.status(data_dir)
    parts = {child.name for child in current.children}
    if name not in parts or name in (*INFRA, "deploy"):
        return
    consumes = services.consuming(name.rpartition("-")[0], parts) == name
    needed = {"postgres", "deploy", "kafka"} if consumes else {"postgres", "deploy"}
    for complaint in complaints(child for child in current.ill if child.name in needed):
        say(f"{complaint} {name} is started and waits for that.")


def settings_kept(data_dir: Path) -> str:
    """What a running stack makes of the settings of this call: it keeps its own."""
    changed = given.changed(Layout(data_dir), given_environment())
    if changed:
        return _not_as_started(changed)
    return "It keeps the settings and ports it was started with; to give it others, `workbot down` first."


def settings_not_heard(data_dir: Path) -> str | None:
    """Which settings are given in this call that a running stack was not started with."""
    here = given_environment()
    changed = [name for name in given.changed(Layout(data_dir), here) or () if name in here]
    return _not_as_started(changed) if changed else None


def _not_as_started(names: Sequence[str]) -> str:
    return (
        f"Not as it was started: {', '.join(names)}. A running stack keeps its settings; to give it others, "
        "`workbot down` first."
    )


def say(text: str, console: Console = err) -> None:
    """Print text as it is, but for commands in it: those are for the stack that was chosen."""
    shown = text if Chosen.data_dir is None else sentences.for_folder(text, Chosen.data_dir)
    console.print(shown, highlight=False, markup=False)
