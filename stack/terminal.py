"""Where the command prints, and how it tells a person what is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import typer
from rich.console import Console

from messaging.errors import MessagingError
from messaging.settings import given_environment
from stack import control, given, screen
from stack.embedded import AlreadyRunning
from stack.layout import Layout
from stack.settings import StackSettings

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


class Chosen:
    """What the options before the command said."""

    settings: StackSettings


@contextmanager
def faults() -> Iterator[None]:
    """Say in a sentence what is wrong, without a traceback, and exit with 1 (130 after Ctrl-C)."""
    try:
        yield
    except AlreadyRunning as error:
        _say(str(error))
        with suppress(control.NotRunning):
            _tell_of_running(error.data_dir)
        raise typer.Exit(1) from None
    except PermissionError as error:
        _say(f"{error.filename}: {error.strerror}. Does it belong to another user?")
        raise typer.Exit(1) from None
    except MessagingError as error:
        _say(str(error))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _tell_of_running(data_dir: Path) -> None:
    try:
        for child in control.status(data_dir).ill:
            _say(child.complaint)
        _say(settings_kept(data_dir))
        err.print(screen.addresses(control.endpoints(data_dir)))
    except control.ControlFailed as fault:
        _say(str(fault))


def settings_kept(data_dir: Path) -> str:
    """What a running stack makes of the settings of this call: it keeps its own."""
    changed = given.changed(Layout(data_dir), given_environment())
    if changed:
        return (
            f"Not as it was started: {', '.join(changed)}. A running stack keeps its settings; to give it others, "
            "`workbot down` first."
        )
    return "It keeps the settings and ports it was started with; to give it others, `workbot down` first."


def _say(text: str) -> None:
    err.print(text, highlight=False, markup=False)
