"""The `workbot` command: the embedded stack, the deploy step, tokens, and the load test."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from messaging import settings as environment
from messaging.errors import Misconfigured
from messaging.settings import read_secret
from stack import control, erase, events, keys, launch, logs, passing, ports, progress, screen, steps
from stack.embedded import delete_data
from stack.layout import Layout
from stack.settings import StackSettings
from stack.status import complaints
from stack.terminal import (
    Chosen,
    err,
    faults,
    out,
    say,
    settings_kept,
    settings_not_heard,
    tell_of_missing,
    warn_of_unused,
)

UP_SECONDS = 300.0

app = typer.Typer(name="workbot", no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)
app.add_typer(steps.schemas, name="schemas")
app.add_typer(steps.topics, name="topics")
app.add_typer(events.app, name="events")


@app.callback()
def workbot(
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where everything is kept. Also WORKBOT_DATA_DIR; else .workbot in the project's folder."),
    ] = None,
) -> None:
    """WorkBot's processing layer on this machine: Postgres, Kafka, a schema registry, and the services on them."""
    with faults():
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            # Loaded: from here on Ctrl-C is told of. Before, it ended the command at once (see the package).
            signal.signal(signal.SIGINT, signal.default_int_handler)
        settings = environment.load(StackSettings)
        chosen = (data_dir or settings.data_dir).expanduser().resolve()
        Chosen.settings, Chosen.data_dir = settings.model_copy(update={"data_dir": chosen}), chosen


@app.command()
def up(
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once everything is ready.")] = False,
    port: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N",
            help="Fix a port, as WORKBOT_PORT_NAME does; may be repeated. "
            f"Names and usual ports: {', '.join(f'{name}={number}' for name, number in ports.DEFAULTS.items())}.",
        ),
    ] = None,
) -> None:
    """Start the stack. In the foreground it shows how every part is doing; Ctrl-C stops it.

    Ports that nobody has ever fixed are chosen: the usual ones, the ones of the last run, or free ones near them.
    The first start downloads about 200 MB.
    """
    with faults():
        fixed = dict(_port(text) for text in port or [])
        warn_of_unused()
        if detach:
            _up_detached(fixed)
            endpoints = control.endpoints(Chosen.settings.data_dir)
            out.print(screen.table(control.status(Chosen.settings.data_dir)))
            out.print()
            out.print(screen.addresses(endpoints))
            out.print(screen.moved(endpoints), highlight=False)
            return
        with screen.View(out, footer="Ctrl-C stops the stack.") as view:
            launch.foreground(Chosen.settings, progress.shown_on(out), fixed, view.show)
        out.print("The stack has stopped. Its data is kept.", highlight=False)


@app.command()
def down(
    delete: Annotated[bool, typer.Option("--delete-data", help="Also delete everything it has stored.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Stop the stack. Its data is kept for the next start."""
    data_dir = Chosen.settings.data_dir
    with faults():
        if delete and data_dir.exists() and not yes:
            typer.confirm(f"Stop the stack and delete everything under {data_dir}?", abort=True)
        stopped = control.stop(data_dir)
        out.print("The stack has stopped." if stopped else f"No stack is running on {data_dir}.", highlight=False)
        if delete and data_dir.exists():
            delete_data(Layout(data_dir))
            out.print("Its data is deleted.")


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with the addresses.")] = False,
) -> None:
    """Show every part: state, address, restarts, memory; last the supervisor, which starts and watches the others.

    Exits with 1 when no stack runs or a part is not ready, also when it was stopped by hand.
    """
    data_dir = Chosen.settings.data_dir
    with faults():
        current, endpoints = control.status(data_dir), control.endpoints(data_dir)
        if as_json:
            sys.stdout.write(json.dumps({**current.as_json(), "endpoints": endpoints.as_json()}, indent=2) + "\n")
        else:
            out.print(screen.table(current))
            out.print(screen.moved(endpoints), highlight=False)
        if changed := settings_not_heard(data_dir):
            say(changed)
        for complaint in complaints(current.ill):
            say(complaint)
        if not current.ready:
            raise typer.Exit(1)


@app.command()
def stop(name: Annotated[str, typer.Argument(help="A part's name as in `workbot status`.")]) -> None:
    """Stop one part and keep it down until `workbot start`. `workbot down` stops them all."""
    with faults():
        control.halt(name, Chosen.settings.data_dir)
        out.print(f"{name} has stopped.", highlight=False)


@app.command()
def start(name: Annotated[str, typer.Argument(help="A part's name as in `workbot status`.")]) -> None:
    """Start one part that was stopped, or start it anew; returns once it is ready."""
    with faults():
        tell_of_missing(name, Chosen.settings.data_dir)
        control.restart(name, data_dir=Chosen.settings.data_dir)
        out.print(f"{name} is ready.", highlight=False)


@app.command("logs")
def show_logs(
    name: Annotated[str, typer.Argument(help="A part's name as in `workbot status`, or supervisor.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it is written; Ctrl-C ends.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many lines of the past.")] = 50,
) -> None:
    """Print a part's log."""
    layout = Layout(Chosen.settings.data_dir)
    known = sorted(path.stem for path in layout.logs.glob("*.log"))
    if name not in known:
        there = f"There are: {', '.join(known)}." if known else "Nothing has run here yet."
        err.print(f"There is no log named {name} under {layout.logs}. {there}", highlight=False, markup=False)
        raise typer.Exit(1)
    sys.stdout.write(logs.tail(layout.log(name), lines))
    sys.stdout.flush()
    if follow:
        try:
            for text in logs.follow(layout.log(name)):
                sys.stdout.write(text)
                sys.stdout.flush()
        except KeyboardInterrupt:
            return


@app.command()
def token(
    sub: Annotated[str, typer.Option(help="Who: the user's id.")],
    tenant: Annotated[str, typer.Option(help="For which tenant.")],
    role: Annotated[list[str], typer.Option(help="sender, reviewer, viewer, agent or admin; may be repeated.")],
    hours: Annotated[float, typer.Option(min=0.01, help="How long it is good for.")] = 12.0,
) -> None:
    """Print a bearer token for this stack's APIs."""
    from web.tokens import issue

    with faults():
        layout = Layout(Chosen.settings.data_dir)
        key = keys.path(layout, keys.TOKEN_KEY)
        if not key.exists():
            raise Misconfigured(f"No stack has run on {layout.root} yet. `workbot up` starts one.")
        secret = read_secret(key, "the key that signs tokens")
        try:
            sys.stdout.write(issue(secret, sub, tenant, role, hours * 3600) + "\n")
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None


app.command()(steps.migrate)
app.command()(erase.erase)

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=_PASSED_ON, add_help_option=False)
def load(context: typer.Context) -> None:
    """Run the load test against the running stack. Options are the load test's own: `workbot load --help`."""
    _replace_by_loadtest("load", context.args)


@app.command(context_settings=_PASSED_ON, add_help_option=False)
def demo(context: typer.Context) -> None:
    """Start the stack if it does not run, run the load test, and say where everything is. Takes its options, too."""
    if "--help" in context.args:
        _replace_by_loadtest("demo", context.args)
    if any(text.partition("=")[0] == "--data-dir" for text in context.args):
        raise typer.BadParameter("it stands before the command: workbot --data-dir DIR demo", param_hint="--data-dir")
    data_dir = Chosen.settings.data_dir
    with faults():
        if control.is_running(data_dir):
            say(f"A stack is running already. {settings_kept(data_dir)}", out)
        else:
            warn_of_unused()
            _up_detached({})
        control.wait_until_ready(data_dir)
        endpoints = control.endpoints(data_dir)
    code = passing.run(_loadtest("demo", context.args))
    out.print()
    out.print(screen.addresses(endpoints))
    say("The stack is still running; `workbot down` stops it.", out)
    raise typer.Exit(code)


def _up_detached(fixed: dict[str, int]) -> None:
    settings = Chosen.settings
    try:
        with screen.View(out, refusals=False) as view:
            launch.detached(settings, progress.shown_on(out), fixed, view.show, UP_SECONDS)
    except KeyboardInterrupt:
        if control.is_running(settings.data_dir):
            say("The stack goes on starting by itself; `workbot down` ends it.")
        raise


def _loadtest(command: str, arguments: list[str]) -> list[str]:
    """The command that runs the load test on this data directory."""
    chosen = [f"--called-as=workbot {command}", "--data-dir", str(Chosen.settings.data_dir)]
    return [sys.executable, "-m", "loadtest", *chosen, *arguments]


def _replace_by_loadtest(command: str, arguments: list[str]) -> NoReturn:
    """Become the load test: signals to this process are then signals to it."""
    sys.stdout.flush()
    os.execv(sys.executable, _loadtest(command, arguments))  # noqa: S606


def _port(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not number.isdigit() or not 1 <= int(number) <= 65535:
        raise typer.BadParameter(f"{text!r} is not NAME=N with N from 1 to 65535", param_hint="--port")
    return name, int(number)
