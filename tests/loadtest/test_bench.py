"""The bench on the real servers, small: every measurement beside its bare loop, and nothing left behind."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import uvloop
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from loadtest.bench import __main__ as command
from loadtest.bench import run, servers, serving, table
from loadtest.bench.figures import Figure, Round, Row, at_most
from loadtest.bench.run import MEASUREMENTS, Measurement, Take
from loadtest.bench.servers import Servers
from loadtest.bench.sizes import Sizes
from messaging import migrate
from messaging.errors import Outage
from schemas import deploy
from services.documents.parts import MIGRATIONS
from stack import control
from tests.fixtures.processes import SECRET, migrated, running
from tests.fixtures.stack import Database, Infra

_LEADS = """
SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = database
WHERE locktype = 'advisory' AND granted AND datname = current_database()
"""

TINY = Sizes(rounds=1, rows=6_000, jobs=20_000, rate=100, seconds=0.5, senders=200)
NOWHERE = Servers("", "", "", "http://127.0.0.1:9", SECRET)


@pytest.fixture(scope="module")
def given(infra: Infra, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The suite's servers, with a documents API on a database of its own."""
    asyncio.run(deploy.register(infra.registry_url))
    folder = tmp_path_factory.mktemp("api")
    with (
        migrated(infra, "documents", MIGRATIONS) as home,
        running(infra, home, "documents", "api", folder, {"storage_dir": folder / "storage"}) as api,
    ):
        yield Servers(infra.kafka_bootstrap, infra.registry_url, infra.admin_conninfo, api.url, api.secret)


@pytest.fixture(scope="module")
def figures(given: Servers) -> list[Figure]:
    """One round of everything."""
    heard: list[tuple[str, int]] = []
    found = uvloop.run(run.perform(given, TINY, list(MEASUREMENTS), lambda *step: heard.append(step)))
    assert list(dict.fromkeys(heard)) == [(name, 0) for name in MEASUREMENTS]
    return found


def leftovers(infra: Infra, kafka_admin: AdminClient) -> list[str]:
    """Topics and databases of any bench."""
    found = [name for name in kafka_admin.list_topics(timeout=10).topics if name.startswith("bench-")]
    with psycopg.connect(infra.admin_conninfo) as connection:
        rows = connection.execute(r"SELECT datname FROM pg_database WHERE datname LIKE 'bench\_%'").fetchall()
    return found + [str(row[0]) for row in rows]


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_every_row_has_its_value_and_a_bare_one_beside_it(figures: list[Figure], name: str) -> None:
    wanted = MEASUREMENTS[name].rows(TINY)
    measured = {figure.row: figure for figure in figures}
    assert wanted
    for row in wanted:
        assert len(measured[row].rounds) == 1
        assert measured[row].value > 0
        assert measured[row].bare > 0
        assert measured[row].ratio > 0
        assert row.bare


def test_the_slow_ones_are_never_faster_than_the_middle(figures: list[Figure]) -> None:
    by_key = {figure.row.key: figure for figure in figures}
    pairs = [(by_key[key], by_key[key.replace("p50", "p99")]) for key in by_key if key.endswith("p50")]
    assert len(pairs) >= 5
    assert all(middle.value <= slow.value and middle.bare <= slow.bare for middle, slow in pairs)


def test_the_layer_costs_something_where_it_does_more(figures: list[Figure]) -> None:
    ratios = {figure.row.key: figure.ratio for figure in figures}
    assert all(ratios[key] < 1 for key in ratios if key.startswith("jobs."))
    assert ratios["start.outbox.p50"] > 1


def test_every_figure_that_was_promised_is_there(figures: list[Figure]) -> None:
    promised = {figure.row.key: figure.row.promised for figure in figures if figure.row.promise}
    assert promised == {
        "backlog": "ratio >= 0.6",
        "commit.p50": "<= 10 ms",
        "jobs.1000.bare": "ratio >= 0.125",
        "jobs.1000.ledger": ">= 3,000 jobs/s",
        "start.direct.p50": "<= 2 ms",
        "start.outbox.p50": "<= 8 ms",
        "pick.one.p99": "<= 50 µs",
        "pick.own.p99": "<= 50 µs",
        "post.p99": "<= 25 ms",
        "requests.served": "ratio >= 0.9",
    }


def test_the_whole_can_be_kept_as_json(figures: list[Figure], tmp_path: Path) -> None:
    table.keep(table.as_json(figures, TINY, started_at="", seconds=1.0), tmp_path / "bench.json")
    kept = json.loads((tmp_path / "bench.json").read_text())["figures"]
    assert len(kept) == len(figures) == len({figure["key"] for figure in kept})
    assert all(figure["bare"] > 0 and figure["ratio"] > 0 for figure in kept)


def test_nothing_is_left_behind(figures: list[Figure], infra: Infra, kafka_admin: AdminClient) -> None:
    assert figures
    assert leftovers(infra, kafka_admin) == []


def test_ctrl_c_in_the_middle_drops_the_topics_and_the_database(
    infra: Infra, kafka_admin: AdminClient, tmp_path: Path
) -> None:
    options = [
        "--data-dir",
        str(infra.data_dir),
        "--only",
        "commit",
        "--seconds",
        "60",
        "--json",
        str(tmp_path / "x"),
    ]
    process = subprocess.Popen([sys.executable, "-m", "loadtest.bench", *options], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while len(leftovers(infra, kafka_admin)) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == command.BROKEN_OFF, said
    assert b"Broken off" in said
    assert leftovers(infra, kafka_admin) == []
    assert list(tmp_path.iterdir()) == []


def test_an_api_that_is_not_there_is_named() -> None:
    with pytest.raises(Outage, match="documents API does not answer POST /api/documents"):
        uvloop.run(run.perform(NOWHERE, TINY, ["post"], lambda *_step: None))


def stand_in(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """One measurement whose promise is 10 ms, and no servers."""

    @asynccontextmanager
    async def opened(_servers: Servers, _sizes: Sizes) -> AsyncIterator[Take]:
        async def take() -> Round:
            return {"part": (value, 1.0)}

        yield take

    @contextmanager
    def nowhere(*_given: Any) -> Iterator[Servers]:
        yield NOWHERE

    row = Row("part", "the part", "ms", "a bare loop", at_most(10))
    monkeypatch.setattr(run, "MEASUREMENTS", {"part": Measurement(lambda _sizes: [row], opened)})
    monkeypatch.setattr(servers, "opened", nowhere)


@pytest.mark.parametrize(
    ("value", "options", "code"), [(9.0, ["--check"], 0), (11.0, ["--check"], command.MISSED), (11.0, [], 0)]
)
def test_a_missed_promise_is_told_and_fails_only_a_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: float, options: list[str], code: int
) -> None:
    stand_in(monkeypatch, value)
    kept = tmp_path / "kept.json"
    result = CliRunner().invoke(command.app, [*options, "--json", str(kept), "--rounds", "2"])
    assert result.exit_code == code, result.output
    assert ("Missed: the part: 11.0 ms" in result.output) is (value > 10)
    assert json.loads(kept.read_text())["figures"][0]["rounds"] == [{"value": value, "bare": 1.0}] * 2


def test_its_processes_say_nothing_of_what_goes_well(
    infra: Infra, database: Database, topic: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    migrate.migrate(database.conninfo, [], "postgres")
    place = serving.Place(database.conninfo, infra.kafka_bootstrap, infra.registry_url, topic(), SECRET)
    deadline = time.monotonic() + 30
    with serving.relay_process(place), database.connect() as conn:
        while not conn.execute(_LEADS).fetchall():
            assert time.monotonic() < deadline, "the relay does not lead"
            time.sleep(0.05)
    assert capfd.readouterr() == ("", "")


def test_an_unknown_name_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "is_running", lambda _data_dir: pytest.fail("it asked for a stack"))
    result = CliRunner().invoke(command.app, ["--only", "nothing"])
    assert result.exit_code == 2
    assert "There is no nothing" in result.output


def test_a_failure_is_one_sentence_and_no_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @contextmanager
    def failing(*_given: Any) -> Iterator[Servers]:
        raise Outage("The servers are away.", "kafka")
        yield NOWHERE

    monkeypatch.setattr(servers, "opened", failing)
    result = CliRunner().invoke(command.app, ["--json", str(tmp_path / "x")])
    assert result.exit_code == command.FAILED
    assert result.output.strip() == "The servers are away."
    assert list(tmp_path.iterdir()) == []
