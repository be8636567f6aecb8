"""A service is wired in many places; what is missing in one of them shows here, and not at the first start."""

import importlib
import pkgutil
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from schemas import events, topics
from services.documents.storage import LocalStorage
from stack import deploy, erase, keys, plan, ports, screen, services
from stack.artifacts import Store
from stack.endpoints import Endpoints
from stack.layout import Layout
from stack.pghome import PostgresHome
from stack.settings import StackSettings

ROOT = Path(__file__).parent.parent
SERVICES = {path.parent.name for path in (ROOT / "services").glob("*/main.py")}


@pytest.fixture
def endpoints(tmp_path: Path) -> Endpoints:
    """A whole stack's addresses on the usual ports. Nothing is started."""
    store = Store(tmp_path, lambda *_: None, None)
    return plan.make(Layout(tmp_path), PostgresHome(tmp_path, tmp_path, None), ports.DEFAULTS, store).endpoints()


def test_every_service_has_its_database_its_migrations_and_its_fence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (fence,) = (one for one in project["tool"]["importlinter"]["contracts"] if one["type"] == "independence")
    assert set(fence["modules"]) == {f"services.{service}" for service in SERVICES}
    assert set(keys.SERVICES) == deploy.DIRECTORIES.keys() == SERVICES
    assert {service: path.is_dir() for service, path in deploy.DIRECTORIES.items()} == dict.fromkeys(SERVICES, True)
    assert set(topics.load().services) >= SERVICES
    assert {path.parent.name for path in (ROOT / "services").glob("*/__init__.py")} == SERVICES


def test_every_service_has_its_share_in_erasing_a_sender(tmp_path: Path) -> None:
    assert {share.service for share in erase.shares(LocalStorage(tmp_path))} == SERVICES


def test_the_page_of_operations_is_held_to_every_service() -> None:
    seen = (ROOT / "tests" / "test_execution.py").read_text("utf-8")
    assert set(re.findall(r"^from services\.(\w+) import parts\b", seen, re.MULTILINE)) == SERVICES


def test_every_process_has_a_port_a_setting_an_address_and_a_place_in_the_stack(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    assert {name.rpartition("-")[0] for name in ports.SERVICES} == SERVICES
    assert len(set(ports.DEFAULTS.values())) == len(ports.DEFAULTS)
    children = {child.name: child for child in services.children(Layout(tmp_path), endpoints, {})}
    assert children.keys() == {"deploy", *ports.SERVICES}
    drawn = Console(width=200, record=True)
    drawn.print(screen.addresses(endpoints))
    shown = drawn.export_text()
    for name, port in ports.SERVICES.items():
        service, _, role = name.rpartition("-")
        child, address = children[name], f"http://127.0.0.1:{port}"
        assert getattr(endpoints, name.replace("-", "_")) == child.address == address
        assert child.command[-2:] == (f"services.{service}.main", role)
        assert child.environment["WORKBOT_DATABASE_URL"] == endpoints.databases[service].url
        assert address in shown
    fixed = {name: port + 1 for name, port in ports.DEFAULTS.items()}
    given = {f"port_{name.replace('-', '_')}": port for name, port in fixed.items()}
    assert StackSettings.model_validate(given).fixed_ports() == fixed


TABLES = ("HANDLERS", "QUIET")
"""What a service's modules call what they handle, and what they pass over."""

COUNTS_ALL = {"analytics"}
"""Services that take whatever travels on their topics."""


def classes(table: object) -> Iterator[type[Any]]:
    """The event classes in a table: its keys, or lists of them by topic."""
    if isinstance(table, type):
        yield table
    elif isinstance(table, Mapping):
        for key, value in table.items():
            yield from classes(value if isinstance(key, str) else key)
    elif isinstance(table, tuple):
        for inner in table:
            yield from classes(inner)


def known_to(service: str) -> set[type[Any]]:
    package = importlib.import_module(f"services.{service}")
    modules = [
        importlib.import_module(module.name)
        for module in pkgutil.walk_packages(package.__path__, f"services.{service}.")
        if not module.name.endswith(".main")
    ]
    return {
        event
        for module in modules
        for name in TABLES
        if hasattr(module, name)
        for event in classes(getattr(module, name))
    }


def test_every_consumer_knows_every_major_of_every_event_on_its_topic() -> None:
    """What it does not know would be a dead letter: handled or passed over, but known."""
    listed, found = topics.load(), 0
    for name in listed:
        travels = {event for event in events.ALL if name == event.TOPIC}
        for consumer, owner in listed[name].consumers.items():
            if owner.service not in COUNTS_ALL:
                unknown = travels - known_to(owner.service)
                assert not unknown, f"{owner.service} does not know {unknown}, which {name}.{consumer} will meet"
                found += 1
    assert found


def test_addresses_survive_the_way_through_the_state_file(endpoints: Endpoints) -> None:
    assert Endpoints.from_json(endpoints.as_json()) == endpoints
