"""The deploy step: three at once, changed files, and what the service's own role may not do."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from messaging.errors import Misconfigured, Outage
from messaging.migrate import OWNER, collect, migrate, provision, verify
from tests.fixtures.outbox import migrated
from tests.fixtures.ports import free_port
from tests.fixtures.stack import Database, Infra


@dataclass(frozen=True, slots=True)
class Fresh:
    """A service nobody has provisioned yet."""

    name: str
    owner_conninfo: str
    conninfo: str


@pytest.fixture
def fresh(infra: Infra) -> Iterator[Fresh]:
    name = f"svc_{uuid.uuid4().hex[:12]}"
    # The superuser acts as the owner: the owner's own password belongs to the stack.
    owner = make_conninfo(infra.admin_conninfo, dbname=name, options=f"-c role={OWNER}")
    yield Fresh(name, owner, make_conninfo(infra.admin_conninfo, dbname=name, user=name, password="secret"))
    with psycopg.connect(infra.admin_conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))


def directory(root: Path, room: str, **files: str) -> Path:
    """`<room>/migrations` with files named NNNN_what, as a service has it."""
    folder = root / room / "migrations"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name.lstrip('_')}.sql").write_text(text)
    return folder


def test_three_deploy_steps_at_once(fresh: Fresh, infra: Infra, tmp_path: Path) -> None:
    """Three processes, nothing there yet: all succeed, and each file was applied once."""
    folder = directory(tmp_path, "things", _0001_things="CREATE TABLE things (id int PRIMARY KEY)")
    program = (
        "import sys\nfrom pathlib import Path\nfrom messaging.migrate import migrate, provision\n"
        "admin, owner, name, folder = sys.argv[1:]\n"
        "provision(admin, name, 'secret')\n"
        "print('\\n'.join(migrate(owner, [Path(folder)], name)))"
    )
    arguments = [sys.executable, "-c", program, infra.admin_conninfo, fresh.owner_conninfo, fresh.name, str(folder)]
    steps = [subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    outcomes = [step.communicate(timeout=60) for step in steps]
    assert [step.returncode for step in steps] == [0, 0, 0], outcomes
    applied = sorted(line for out, _ in outcomes for line in out.splitlines() if line)
    assert applied == sorted(migration.name for migration in collect([folder]))
    with psycopg.connect(fresh.conninfo) as connection:
        assert connection.execute("INSERT INTO things VALUES (1) RETURNING id").fetchone() == (1,)


def test_provisioning_again_changes_the_password_and_nothing_else(fresh: Fresh, infra: Infra) -> None:
    provision(infra.admin_conninfo, fresh.name, "other")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(fresh.conninfo)
    provision(infra.admin_conninfo, fresh.name, "secret")
    with psycopg.connect(fresh.conninfo) as connection:
        row = connection.execute(
            "SELECT rolsuper OR rolcreatedb OR rolcreaterole FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        assert row == (False,)
        owner = connection.execute(
            "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()"
        ).fetchone()
        assert owner == (OWNER,)


@pytest.mark.parametrize("name", ["postgres", OWNER, "pg_read_all_data", "Docs", 'x"; DROP', "", "1st"])
def test_names_that_must_not_be_roles(infra: Infra, name: str) -> None:
    with pytest.raises(Misconfigured):
        provision(infra.admin_conninfo, name, "secret")


def test_the_services_role_has_rows_and_no_schema(fresh: Fresh, infra: Infra) -> None:
    """No DDL, no rewriting of events, no way round the trigger, no deploy ledger, no standing still in a transaction;
    but the owner's maintenance."""
    provision(infra.admin_conninfo, fresh.name, "secret")
    migrate(fresh.owner_conninfo, [], fresh.name)
    forbidden = [
        "CREATE TABLE mine (id int)",
        "ALTER TABLE outbox ADD COLUMN extra int",
        "DROP TABLE relay_position",
        "UPDATE outbox SET payload = ''",
        "DELETE FROM outbox",
        "TRUNCATE outbox",
        "INSERT INTO outbox_default (id) VALUES (gen_random_uuid())",
        "INSERT INTO outbox (id, xid) VALUES (gen_random_uuid(), '1')",
        "INSERT INTO outbox (id, seq) OVERRIDING SYSTEM VALUE VALUES (gen_random_uuid(), 1)",
        "UPDATE schema_migrations SET sha256 = ''",
        "ALTER TABLE outbox DISABLE TRIGGER ALL",
        "SELECT relay_adopt('x', now())",
    ]
    with psycopg.connect(fresh.conninfo, autocommit=True) as connection:
        for statement in forbidden:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
        assert connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("6s",)
        assert connection.execute("SELECT outbox_maintain('7 days')").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM relay_position").fetchone() == (0,)
    with pytest.raises(psycopg.OperationalError), psycopg.connect(fresh.conninfo, dbname="documents"):
        pass


def test_the_services_role_sees_whose_transaction_is_oldest(fresh: Fresh, infra: Infra) -> None:
    """Another role's, in another database: through the owner's function, without its statement's text."""
    provision(infra.admin_conninfo, fresh.name, "secret")
    migrate(fresh.owner_conninfo, [], fresh.name)
    with (
        psycopg.connect(infra.admin_conninfo, application_name="stranger") as stranger,
        psycopg.connect(fresh.conninfo, autocommit=True) as connection,
    ):
        stranger.execute("SELECT pg_current_xact_id()")
        open_since = stranger.execute("SELECT xact_start FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        (started,) = open_since.fetchone() or (None,)
        row = connection.execute(
            """
            SELECT holder, database, application, state,
                clock_timestamp() - make_interval(secs => age_seconds) <= %s + interval '10 ms'
            FROM outbox_oldest_writer()
            """,
            [started],
        ).fetchone()
        assert row is not None
        assert row[4], "an open writer older than the one reported was missed"
        assert all(isinstance(part, str) for part in row[:4])


def test_a_changed_file_is_refused(database: Database, tmp_path: Path) -> None:
    folder = directory(tmp_path, "things", _0001_things="CREATE TABLE things (id int)")
    with migrated(database, [folder]) as service:
        role = psycopg.conninfo.conninfo_to_dict(service.conninfo)["user"]
        assert migrate(service.owner_conninfo, [folder], str(role)) == []
        directory(tmp_path, "things", _0002_more="CREATE TABLE more (id int)")
        assert migrate(service.owner_conninfo, [folder], str(role)) == ["things/0002_more.sql"]
        directory(tmp_path, "things", _0001_things="CREATE TABLE things (id bigint)")
        with pytest.raises(Misconfigured, match=r"things/0001_things\.sql was changed"):
            migrate(service.owner_conninfo, [folder], str(role))


def test_a_file_that_fails_leaves_nothing(database: Database, tmp_path: Path) -> None:
    """The files before it stay; it can be corrected and the step run again."""
    folder = directory(
        tmp_path,
        "things",
        _0001_good="CREATE TABLE good (id int)",
        _0002_bad="CREATE TABLE half (id int); CREATE TABLE good (id int)",
    )
    with pytest.raises(psycopg.errors.DuplicateTable), migrated(database, [folder]):
        pass
    with database.connect() as connection:
        assert connection.execute("SELECT to_regclass('good'), to_regclass('half')").fetchone() == ("good", None)
        names = connection.execute("SELECT name FROM schema_migrations WHERE name LIKE 'things/%'").fetchall()
        assert names == [("things/0001_good.sql",)]
    directory(tmp_path, "things", _0002_bad="CREATE TABLE half (id int)")
    with migrated(database, [folder]) as service:
        assert service.execute("SELECT count(*) FROM half") == [(0,)]


@pytest.mark.parametrize("name", ["1_short", "0001-dash", "0001_Upper", "things"])
def test_malformed_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(Misconfigured, match="NNNN_what"):
        collect([directory(tmp_path, "things", **{name: ""})])


def test_two_files_of_one_number(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="number 0001"):
        collect([directory(tmp_path, "things", _0001_one="", _0001_two="")])


async def test_a_service_refuses_an_older_schema(database: Database, tmp_path: Path) -> None:
    folder = directory(tmp_path, "things", _0001_things="CREATE TABLE things (id int)")
    async with AsyncConnectionPool(database.conninfo, min_size=1, open=False) as pool:
        with pytest.raises(Misconfigured, match="run `workbot migrate`"):
            await verify(pool, [folder])
    with migrated(database, [folder]) as service:
        async with AsyncConnectionPool(service.conninfo, min_size=1, open=False) as pool:
            await verify(pool, [folder])
            directory(tmp_path, "things", _0002_more="CREATE TABLE more (id int)")
            with pytest.raises(Misconfigured, match=r"things/0002_more\.sql: run `workbot migrate`"):
                await verify(pool, [folder])
            (folder / "0002_more.sql").unlink()
            directory(tmp_path, "things", _0001_things="CREATE TABLE things (id bigint)")
            with pytest.raises(Misconfigured, match="was changed"):
                await verify(pool, [folder])


def test_a_database_that_is_away_is_an_outage_told_on_one_line(tmp_path: Path) -> None:
    away = f"postgresql://owner@127.0.0.1:{free_port()}/documents"
    for deploy in (lambda: provision(away, "documents", "x"), lambda: migrate(away, [tmp_path], "documents")):
        with pytest.raises(Outage, match=r"^Postgres does not answer the deploy step: .*Connection refused\.$"):
            deploy()


def test_what_the_database_refuses_is_no_outage(database: Database, tmp_path: Path) -> None:
    (tmp_path / "0001_wrong.sql").write_text("SELECT nothing FROM nowhere", "utf-8")
    with pytest.raises(psycopg.errors.UndefinedTable):
        migrate(database.conninfo, [tmp_path], "documents")
