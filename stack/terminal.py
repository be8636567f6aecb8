"""Where the command prints, and how it tells a person what is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import typer
from rich.console import Console

from messaging.errors import MessagingError
from stack import control, screen
from stack.embedded import AlreadyRunning

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


@contextmanager
def faults() -> Iterator[None]:
    """Say in a sentence what is wrong, without a traceback, and exit with 1 (130 after Ctrl-C)."""
    try:
        yield
    except AlreadyRunning as error:
        _say(str(error))
        with suppress(control.NotRunning):
            err.print(screen.addresses(control.endpoints(error.data_dir)))
        raise typer.Exit(1) from None
    except PermissionError as error:
        _say(f"{error.filename}: {error.strerror}. Does it belong to another user?")
        raise typer.Exit(1) from None
    except MessagingError as error:
        _say(str(error))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _say(text: str) -> None:
    err.print(text, highlight=False, markup=False)
