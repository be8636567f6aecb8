"""`workbot migrate`, `workbot topics`, `workbot schemas`: the parts of the deploy step, one by one."""

import asyncio
from typing import Annotated

import typer

from stack import control, deploy
from stack.terminal import Chosen, faults, out, say

schemas = typer.Typer(no_args_is_help=True, help="Schemas, at the registry and published.")
topics = typer.Typer(no_args_is_help=True, help="Kafka's topics.")


def migrate() -> None:
    """Bring roles, databases and their schemas up to date on the running stack. Safe to repeat and to run at once."""
    with faults():
        endpoints = control.reach(Chosen.settings.data_dir, "postgres")
        _report(deploy.migrate(endpoints), "Every database is up to date.")


@topics.command("create")
def create_topics() -> None:
    """Make missing topics and bring settings in line with topics.toml. Safe to repeat and to run at once."""
    with faults():
        endpoints = control.reach(Chosen.settings.data_dir, "kafka")
        _report(asyncio.run(deploy.create_topics(endpoints)), "Every topic is as topics.toml says.")


@schemas.command("register")
def register_schemas() -> None:
    """Register every version of every event. Safe to repeat and to run at once."""
    with faults():
        endpoints = control.reach(Chosen.settings.data_dir, "registry")
        _report(asyncio.run(deploy.register(endpoints)), "There is nothing to register.")


@schemas.command("asyncapi")
def publish_contract(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 when it is out of date.")
    ] = False,
) -> None:
    """Make docs/asyncapi.yaml anew from topics.toml, the Avro files and their examples. Needs no stack."""
    from schemas import asyncapi

    with faults():
        if check and not asyncapi.is_current():
            say(f"docs/asyncapi.yaml is out of date; `{asyncapi.COMMAND}` makes it anew.")
            raise typer.Exit(1)
        written = not check and asyncapi.write()
        _report(["docs/asyncapi.yaml is written."] if written else [], "docs/asyncapi.yaml is up to date.")


def _report(lines: list[str], nothing: str) -> None:
    for line in lines or [nothing]:
        out.print(line, highlight=False, markup=False)
