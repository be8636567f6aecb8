"""`workbot erase` on a whole stack: one sender is gone from every database, whatever Kafka still brings."""

import asyncio
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from messaging import erasure
from messaging.database import Connection
from messaging.message import Key
from messaging.settings import read_secret
from services.analytics import erasure as analytics
from stack import agreement, control, erase
from stack.cli import app
from stack.deploy import DIRECTORIES
from stack.layout import Layout
from tests.stack.processes import Whole, running_whole, until, wait

WORKBOT = str(Path(sys.executable).with_name("workbot"))
ANN, BOB = "ann-7f3e9c", "bob-7f3e9c"
TENANT, OTHER = "tenant-51ab", "other-51ab"
PEOPLE = ((TENANT, ANN), (TENANT, BOB), (OTHER, ANN))
TEXT = "Supplier: Acme Ltd\nInvoice number: 7\nDate: 2026-05-04\nTotal: 12.50 EUR\nCurrency: EUR"


class Erasable(Whole):
    """A running stack in which senders are erased."""

    def workbot(self, *arguments: str, says: str = "") -> "subprocess.CompletedProcess[str]":
        command = self.command(*arguments)
        return subprocess.run(command, input=says, capture_output=True, text=True, timeout=120, check=False)

    @contextmanager
    def erasing(self, tenant: str, sender: str) -> "Iterator[subprocess.Popen[str]]":
        """The command while it runs, what it says in one stream."""
        command = self.command("erase", "--tenant", tenant, "--sender", sender, "--yes")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def command(self, *arguments: str) -> list[str]:
        return [WORKBOT, "--data-dir", str(self.data_dir), *arguments]

    def database(self, service: str) -> "psycopg.Connection[tuple[Any, ...]]":
        """As the owner of the tables."""
        owner = control.endpoints(self.data_dir).owner
        password = read_secret(owner.password_file, "the owner's password")
        return psycopg.connect(make_conninfo(owner.url, dbname=service, password=password))

    def rows(self, service: str, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self.database(service) as conn:
            return conn.execute(query.encode(), parameters).fetchall()

    def ends(self, tenant: str, sender: str) -> tuple[set[str], set[str], set[str], int]:
        """Of the requests that are kept: what was told to nobody; what was told and is not kept, or has no event; how
        much was counted beyond it."""
        kept = self.kept(tenant, sender)
        events = {
            row[0] for row in self.rows("gateway", "select subject from outbox where key = %s", f"{tenant}:{sender}")
        }
        told = self.rows(
            "notifications", "select href from notifications where tenant = %s and about = %s", tenant, sender
        )
        told_of = {href.rsplit("/", 1)[1] for (href,) in told}
        with self.client(tenant, "eve", "admin") as admin:
            counted = admin.get("/api/analytics/events", params={"sender": sender}).json()["total"]
        return kept - told_of, told_of - kept, kept ^ events, counted - len(kept)

    def kept(self, tenant: str, sender: str) -> set[str]:
        """The ids of their requests."""
        query = "select id from requests where tenant = %s and sender = %s"
        return {str(row[0]) for row in self.rows("gateway", query, tenant, sender)}

    def naming(self, tenant: str, sender: str) -> dict[str, int]:
        """Rows of any table of any service that have the sender's and the tenant's name in them, as text or as bytes.

        The books of runs are left out: what was on its way on Kafka may write a line there when it ends.
        """
        found = {}
        for service in DIRECTORIES:
            with self.database(service) as conn:
                tables = conn.execute(
                    "select relname from pg_class"
                    " where relnamespace = 'public'::regnamespace and relkind in ('r', 'p')"
                    " and not relispartition and relname <> 'ledger_attempts'"
                ).fetchall()
                for (table,) in tables:
                    has = [(name, name.encode().hex()) for name in (sender, tenant)]
                    row = conn.execute(
                        sql.SQL(
                            "select count(*) from {} as t where (t::text like %s or t::text like %s)"
                            " and (t::text like %s or t::text like %s)"
                        ).format(sql.Identifier(table)),
                        [f"%{text}%" for pair in has for text in pair],
                    ).fetchone()
                    assert row is not None
                    if row[0]:
                        found[f"{service}.{table}"] = int(row[0])
        return found

    def letters(self, tenant: str, sender: str, **more: str) -> int:
        """How many dead letters of the sender there are."""
        with self.client(tenant, "eve", "admin") as admin:
            return len(admin.get("/api/admin/dead-letters", params={"owner": sender, **more}).json()["items"])

    def seen(self, tenant: str, sender: str) -> dict[str, int]:
        """What the APIs show of a sender."""
        with self.client(tenant, sender) as person, self.client(tenant, "eve", "admin") as admin:
            totals = admin.get("/api/analytics/events", params={"sender": sender})
            assert totals.status_code == 200, totals.text
            team = admin.get("/api/notifications", params={"limit": 200}).json()["items"]
            return {
                "documents": len(person.get("/api/documents").json()["items"]),
                "requests": len(person.get("/api/requests").json()["items"]),
                "notifications": len(person.get("/api/notifications").json()["items"]),
                "their team's": sum(sender in item["title"] for item in team),
                # What goes to their webhook, which is nowhere, dies too, but some minutes later.
                "dead letters": self.letters(tenant, sender, source="documents.jobs"),
                "counted": int(totals.json()["total"]),
            }


WHOLE = {
    "documents": 2,
    "requests": 1,
    # That one was approved, and the other failed.
    "notifications": 2,
    "their team's": 1,
    "dead letters": 1,
    # Two received, one read, one failed, one request.
    "counted": 5,
}
NOTHING = dict.fromkeys(WHOLE, 0)
WHOLLY: tuple[set[str], set[str], set[str], int] = (set(), set(), set(), 0)


@pytest.fixture(scope="module")
def whole() -> Iterator[Erasable]:
    with running_whole() as data_dir:
        whole = Erasable(data_dir)
        for tenant, sender in PEOPLE:
            hand_in(whole, tenant, sender)
        for tenant, sender in PEOPLE:
            until(lambda t=tenant, s=sender: whole.seen(t, s), WHOLE)  # type: ignore[misc]
        yield whole


def hand_in(whole: Erasable, tenant: str, sender: str) -> None:
    with whole.client(tenant, sender) as person:
        assert person.post("/api/documents", json={"text": TEXT}).status_code == 202
        broken = {"file": (f"{sender}.pdf", b"%PDF-1.7\nbroken", "application/pdf")}
        assert person.post("/api/documents", files=broken).status_code == 202
        asked = {"title": f"A chair for {sender}", "body": "Please.", "team": "it"}
        assert person.post("/api/requests", json=asked).status_code == 201
        hook = {"channel": "webhook", "address": f"https://workbot.invalid/{sender}"}
        assert person.post("/api/notifications/subscriptions", json=hook).status_code == 201


def files(whole: Erasable) -> int:
    return sum(path.is_file() for path in Layout(whole.data_dir).storage.rglob("*"))


def test_looking_and_saying_no_change_nothing(whole: Erasable) -> None:
    before = whole.naming(TENANT, ANN)
    assert {"documents.documents", "gateway.requests", "gateway.dead_letters"} <= before.keys()
    assert {"notifications.notifications", "notifications.subscriptions", "documents.outbox"} <= before.keys()
    least = whole.letters(TENANT, ANN)
    shown = whole.workbot("erase", "--tenant", TENANT, "--sender", ANN, "--dry-run")
    assert shown.returncode == 0, shown.stderr
    most = whole.letters(TENANT, ANN)
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    for line in ("documents documents 2", "documents stored files 2", "gateway requests 1"):
        assert line in lines
    assert least >= 1
    assert any(f"gateway dead letters {count}" in lines for count in range(least, most + 1))
    asked = whole.workbot("erase", "--tenant", TENANT, "--sender", ANN, says="n\n")
    assert asked.returncode == 1
    assert "Erase all of it for good?" in asked.stdout
    silent = whole.workbot("erase", "--tenant", TENANT, "--sender", ANN)
    assert silent.returncode == 1
    assert whole.naming(TENANT, ANN).items() >= before.items()
    assert whole.seen(TENANT, ANN) == WHOLE
    assert files(whole) == 6


def test_one_sender_is_gone_and_nobody_else_and_nothing_brings_them_back(whole: Erasable) -> None:
    done = whole.workbot("erase", "--tenant", TENANT, "--sender", ANN, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    # Their webhook is still tried now and then.
    assert re.search(
        r"Nothing of this sender is left in the databases(| but (one line|\d+ lines) in .+)\. ", done.stdout
    )
    assert whole.naming(TENANT, ANN) == {}
    assert whole.seen(TENANT, ANN) == NOTHING
    assert files(whole) == 4
    for who in PEOPLE[1:]:
        assert whole.seen(*who) == WHOLE

    again = whole.workbot("erase", "--tenant", TENANT, "--sender", ANN, "--yes")
    assert again.returncode == 0, again.stdout + again.stderr

    # Everything that Kafka has of them comes once more; what is new of theirs is theirs again.
    replayed = whole.workbot(
        "events", "replay", "--consumer", "notifications", "--from", "EARLIEST", "--while-running"
    )
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    with whole.client(TENANT, "eve", "admin") as eve:

        def lag() -> int:
            consumers = eve.get("/api/admin/consumers").json()["consumers"]
            return sum(one["lag"] for one in consumers if one["consumer"] == "notifications")

        until(lag, 0)
    assert whole.naming(TENANT, ANN) == {}
    for who in PEOPLE[1:]:
        assert whole.seen(*who) == WHOLE
    hand_in(whole, TENANT, ANN)
    until(lambda: whole.seen(TENANT, ANN), WHOLE)


def test_a_sender_nobody_knows_is_told_of(whole: Erasable) -> None:
    for option in ("--dry-run", "--yes"):
        asked = whole.workbot("erase", "--tenant", TENANT, "--sender", "an-7f3e9c", option)
        assert asked.returncode == 0, asked.stdout + asked.stderr
        assert f"Nothing is known of sender an-7f3e9c of tenant {TENANT}" in asked.stdout
        assert "is the name right?" in asked.stdout
        assert "Erased" not in asked.stdout
        assert "left in the databases" not in asked.stdout
    assert "so nothing was erased" in asked.stdout


def test_a_sender_who_was_erased_before_is_no_stranger(whole: Erasable) -> None:
    sender = "nia-7f3e9c"
    with whole.client(TENANT, sender) as person:
        assert person.post("/api/requests", json={"title": "t", "body": "", "team": "it"}).status_code == 201
    until(lambda: whole.ends(TENANT, sender), WHOLLY)
    erased = whole.workbot("erase", "--tenant", TENANT, "--sender", sender, "--yes")
    assert erased.returncode == 0, erased.stdout + erased.stderr
    for option in ("--dry-run", "--yes"):
        again = whole.workbot("erase", "--tenant", TENANT, "--sender", sender, option)
        assert again.returncode == 0, again.stdout + again.stderr
        assert f"Nothing is kept of sender {sender} of tenant {TENANT}, whose erasure was asked for" in again.stdout
        assert "is the name right?" not in again.stdout
    assert "Nothing of this sender is left in the databases." in again.stdout


def test_a_service_that_cannot_be_told_is_named_and_nothing_is_gone(whole: Erasable) -> None:
    with whole.database("notifications") as held:
        held.execute("select from erased_when(%s)", [[erasure.digest(Key(TENANT, BOB))]])
        failed = whole.workbot("erase", "--tenant", TENANT, "--sender", BOB, "--yes")
    assert failed.returncode == 1
    assert "notifications: Postgres: canceling statement due to lock timeout. What" in failed.stderr
    assert "run this again" in failed.stderr
    assert "Marked, not erased: " in failed.stderr
    assert whole.seen(TENANT, BOB) == WHOLE
    assert whole.workbot("erase", "--tenant", TENANT, "--sender", BOB, "--yes").returncode == 0
    assert whole.seen(TENANT, BOB) == NOTHING
    assert whole.naming(TENANT, BOB) == {}


def test_giving_up_before_all_know_takes_nothing(whole: Erasable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every moment has come before all services are told of it: not even the counts go."""
    monkeypatch.setattr(agreement, "AHEAD", timedelta())
    whose = ["erase", "--tenant", OTHER, "--sender", ANN, "--yes"]
    failed = CliRunner().invoke(app, ["--data-dir", str(whole.data_dir), *whose])
    assert failed.exit_code == 1
    assert "Marked, not erased: nobody is told" in failed.stderr
    assert "too slow to tell every service in time" in failed.stderr
    asked = "select count(*) from count_erasures where owner = %s"
    assert whole.rows("analytics", asked, erasure.digest(Key(OTHER, ANN))) == [(0,)]
    assert whole.seen(OTHER, ANN) == WHOLE


def test_a_run_that_ends_late_leaves_its_line_and_is_no_new_work(
    whole: Erasable, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, runs = "eva-7f3e9c", iter((1, 2))

    def end_late(*_told: object) -> None:
        with whole.database("notifications") as conn:
            conn.execute(
                "insert into ledger_attempts (consumer, message_id, generation, attempt, tenant, sender, worker,"
                " ready_at, started_at, finished_at, outcome) select 'deliverer', 'm', 0, attempt, %s, %s, 1,"
                " clock_timestamp(), clock_timestamp(), clock_timestamp(), 'done'"
                " from generate_series(1, %s) as attempt",
                [TENANT, sender, next(runs)],
            )

    monkeypatch.setattr(erase, "_erase_aftermath", end_late)
    command = ["--data-dir", str(whole.data_dir), "erase", "--tenant", TENANT, "--sender", sender, "--yes"]
    for lines in ("one line", "2 lines"):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        said = " ".join(done.output.split())
        assert f"Nothing of this sender is left in the databases but {lines} in the book of runs" in said
    monkeypatch.undo()
    last = CliRunner().invoke(app, command)
    assert last.exit_code == 0
    assert "Nothing of this sender is left in the databases." in " ".join(last.output.split())
    kept = "select count(*) from ledger_attempts where tenant = %s and sender = %s"
    assert whole.rows("notifications", kept, TENANT, sender) == [(0,)]


def test_counts_asked_for_too_late_are_asked_for_again(whole: Erasable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what was counted from after the moment would go with them."""
    asked: list[datetime] = []
    ask = analytics.ask

    async def ask_slowly(conn: Connection, owner: Key) -> None:
        if not asked:
            await asyncio.sleep(agreement.AHEAD.total_seconds())
        await ask(conn, owner)
        asked.append(await erasure.moment(conn))

    monkeypatch.setattr(analytics, "ask", ask_slowly)
    whose = ["erase", "--tenant", TENANT, "--sender", "late-7f3e9c", "--yes"]
    assert CliRunner().invoke(app, ["--data-dir", str(whole.data_dir), *whose]).exit_code == 0
    assert len(asked) == 2
    query = "select erased_at from erasures where owner = %s"
    ((erased_at,),) = whole.rows("gateway", query, erasure.digest(Key(TENANT, "late-7f3e9c")))
    assert asked[-1] + erasure.LEAD <= erased_at


def test_a_later_moment_that_one_service_knows_of_is_everybodys(whole: Erasable) -> None:
    """A run with a later moment was broken off after its first mark. Requests are filed until this one has ended."""
    sender = "mia-7f3e9c"
    name = erasure.digest(Key(TENANT, sender))
    with whole.database("notifications") as conn:
        conn.execute(
            "insert into erasures (owner, erased_at) values (%s, clock_timestamp() + interval '10 s')", [name]
        )
    filed = 0
    with whole.client(TENANT, sender) as client, whole.erasing(TENANT, sender) as command:
        while command.poll() is None:
            asked = {"title": str(filed), "body": "", "team": "flood"}
            assert client.post("/api/requests", json=asked).status_code == 201
            filed += 1
            time.sleep(0.1)
        assert command.stdout is not None
        said = command.stdout.read()
    assert "had set a later moment; waits for it" in said
    query = "select erased_at from erasures where owner = %s"
    assert len({row for service in DIRECTORIES for row in whole.rows(service, query, name)}) == 1
    until(lambda: whole.ends(TENANT, sender), WHOLLY)
    assert len(whole.kept(TENANT, sender)) < filed


def test_breaking_off_before_anything_goes_is_said(whole: Erasable) -> None:
    sender = "kim-7f3e9c"
    with whole.database("gateway") as held, whole.erasing(TENANT, sender) as command:
        held.execute("select from erased_when(%s)", [[erasure.digest(Key(TENANT, sender))]])
        wait(lambda: waits(whole, "gateway"), 60)
        command.send_signal(signal.SIGINT)
        said, _ = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "Marked, not erased: nobody is told" in said
    assert "Traceback" not in said


def test_two_commands_erase_one_after_the_other(whole: Erasable) -> None:
    """The one that waits has told no service of a moment: killed, it leaves nothing that the other does not know."""
    endpoints = control.endpoints(whole.data_dir)
    sender = "lea-7f3e9c"
    with agreement.alone(endpoints, "documents", Key(TENANT, sender)):
        with agreement.alone(endpoints, "documents", Key(TENANT, "leo-7f3e9c")):
            pass
        with whole.erasing(TENANT, sender) as command:
            wait(lambda: waits(whole, "documents"), 60)
            command.kill()
            said, _ = command.communicate(timeout=60)
        assert "Another command erases this sender" in said
        query = "select from erasures where owner = %s"
        assert not any(whole.rows(service, query, erasure.digest(Key(TENANT, sender))) for service in DIRECTORIES)
    assert whole.workbot("erase", "--tenant", TENANT, "--sender", sender, "--yes").returncode == 0


def waits(whole: Erasable, service: str) -> bool:
    """Whether a command waits for a lock in this service's database."""
    query = (
        "select count(*) from pg_stat_activity where datname = %s and application_name = 'workbot-erase'"
        " and wait_event_type = 'Lock'"
    )
    return whole.rows(service, query, service) != [(0,)]


@pytest.mark.parametrize("relay", [pytest.param("runs", marks=pytest.mark.long), "stands still"])
def test_what_is_filed_meanwhile_is_erased_whole_or_kept_whole(whole: Erasable, relay: str) -> None:
    """Six clients of one sender file without a pause, and two commands erase them at once, twice. In the end every
    request that is kept was told and counted, and nothing was of one that is not."""
    sender = f"vic-{relay.replace(' ', '-')}"
    done = threading.Event()

    def file(number: int) -> int:
        filed = 0
        with whole.client(TENANT, sender) as client:
            while not done.is_set():
                asked = {"title": f"{number}-{filed}", "body": "", "team": "flood"}
                assert client.post("/api/requests", json=asked).status_code == 201
                filed += 1
                time.sleep(0.02)
        return filed

    def erase() -> "subprocess.CompletedProcess[str]":
        return whole.workbot("erase", "--tenant", TENANT, "--sender", sender, "--yes")

    if relay == "stands still":
        assert whole.workbot("stop", "gateway-worker").returncode == 0
    with ThreadPoolExecutor(8) as pool:
        filing = [pool.submit(file, number) for number in range(6)]
        try:
            time.sleep(2)
            for _ in range(2):
                for erased in [pool.submit(erase) for _ in range(2)]:
                    said = erased.result()
                    assert said.returncode == 1, said.stdout + said.stderr
                    assert "This came in meanwhile" in said.stderr
            time.sleep(1)
        finally:
            done.set()
        filed = sum(one.result() for one in filing)
    if relay == "stands still":
        assert whole.workbot("start", "gateway-worker").returncode == 0
    until(lambda: whole.ends(TENANT, sender), WHOLLY)
    assert 0 < len(whole.kept(TENANT, sender)) < filed
    # And what is late: nothing more comes.
    time.sleep(2)
    assert whole.ends(TENANT, sender) == WHOLLY
    assert erase().returncode == 0
    assert whole.seen(TENANT, sender) == NOTHING


@pytest.mark.parametrize(
    ("tenant", "sender", "said"),
    [
        ("a:b", "ann", "no colon"),
        ("", "ann", "--tenant"),
        ("acme", "", "--sender"),
        ("acme", "a\nb", "the sender holds control"),
        ("a\nb", "ann", "the tenant holds control"),
        ("acme", "a" * 201, "the sender is longer than 200"),
        ("acme", "team:it", "that is a team"),
    ],
)
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, tenant: str, sender: str, said: str) -> None:
    arguments = ["--data-dir", str(tmp_path / "none"), "erase", "--tenant", tenant, "--sender", sender, "--yes"]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2
    assert said in refused.stderr


def test_without_a_stack_it_says_so(tmp_path: Path) -> None:
    arguments = ["--data-dir", str(tmp_path / "none"), "erase", "--tenant", "acme", "--sender", "ann", "--yes"]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 1
    assert "No stack is running" in refused.stderr
