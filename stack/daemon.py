"""`python -m stack.daemon`: a supervisor as its own process, without a terminal."""

import argparse
import asyncio
import sys
from pathlib import Path

from messaging import settings as environment
from stack import journal, sentences
from stack.embedded import Embedded
from stack.layout import Layout
from stack.progress import Lines
from stack.settings import StackSettings


def command(data_dir: Path, *, services: bool = True, ephemeral: bool = False, ports: dict[str, int]) -> list[str]:
    """The command line that runs a supervisor on this data directory."""
    options = [f"--port={name}={port}" for name, port in ports.items()]
    if not services:
        options.append("--infra-only")
    if ephemeral:
        options.append("--ephemeral")
    return [sys.executable, "-P", "-m", "stack.daemon", "--data-dir", str(data_dir), *options]


def port_option(text: str) -> tuple[str, int]:
    """`kafka=19092` as a name and a number. Raises ValueError."""
    name, _, number = text.partition("=")
    return name, int(number)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    """Run until SIGTERM or the control socket's `stop`. What cannot be started is told on stderr, in one line."""
    parser = argparse.ArgumentParser(prog="python -m stack.daemon", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--port", type=port_option, action="append", default=[], metavar="NAME=N")
    parser.add_argument("--infra-only", action="store_true", help="without the deploy step and the services")
    parser.add_argument("--ephemeral", action="store_true", help="delete the data directory at the end")
    options = parser.parse_args()
    layout = Layout(options.data_dir)
    try:
        layout.create()
        with journal.kept_in(layout.log("supervisor")):
            settings = environment.load(StackSettings).model_copy(update={"data_dir": options.data_dir})
            with Embedded(
                settings,
                Lines(_say),
                services=not options.infra_only,
                fixed_ports=dict(options.port),
                service_environment=environment.given_environment(),
                ephemeral=options.ephemeral,
            ) as embedded:
                asyncio.run(embedded.run())
    except sentences.EXPECTED as error:
        _say(sentences.told(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
