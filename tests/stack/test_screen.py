"""What the command draws."""

import io
from dataclasses import fields
from pathlib import Path

import pytest
from rich.console import Console

from stack import screen
from stack.endpoints import Database, Endpoints

FACES = [field.name for field in fields(Endpoints) if field.name.endswith("_api")]


def endpoints(**addresses: str) -> Endpoints:
    database, somewhere = Database("postgresql://x@y/z", Path("secrets/x.pw")), Path("somewhere")
    services = {field.name: "" for field in fields(Endpoints) if field.name.endswith(("_api", "_worker"))}
    return Endpoints(
        kafka="k:1",
        registry="http://r:1",
        postgres="p:1",
        admin=database,
        owner=database,
        databases={},
        token_secret_file=somewhere,
        storage=somewhere,
        postgres_data=somewhere,
        data_dir=somewhere,
        ports={},
        **(services | addresses),  # type: ignore[arg-type]
    )


def drawn(of: Endpoints) -> list[str]:
    told = io.StringIO()
    Console(file=told, width=200).print(screen.addresses(of))
    return [line.strip() for line in told.getvalue().splitlines()]


@pytest.mark.parametrize("face", FACES)
def test_each_api_is_followed_by_its_reference(face: str) -> None:
    lines = drawn(endpoints(**{face: "http://127.0.0.1:1"}))
    (at,) = (number for number, line in enumerate(lines) if line.endswith("http://127.0.0.1:1"))
    assert lines[at + 1].split() == ["its", "reference", "http://127.0.0.1:1/docs"]


def test_what_does_not_run_has_no_line() -> None:
    assert [line for line in drawn(endpoints()) if "reference" in line or "documents" in line] == []
