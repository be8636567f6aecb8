"""A real stack from its first start to its end: what a person does to it, and what befalls it."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo

from messaging.errors import Misconfigured
from messaging.settings import read_secret
from stack import control, daemon, guard, keys, pghome, ports, postgres, state
from stack.layout import Layout
from stack.status import Status
from tests.fixtures.ports import free_ports
from tests.stack.processes import alive, descendants, wait

WORKBOT = str(Path(sys.executable).with_name("workbot"))


REPLAY = "events replay --consumer documents.events.notifications --from EARLIEST"


@dataclass
class Machine:
    """One data directory and the supervisor that was last started on it."""

    data_dir: Path
    ports: dict[str, int] = field(default_factory=free_ports)
    supervisor: "subprocess.Popen[bytes] | None" = None

    def up(self, ports: dict[str, int]) -> Status:
        """Start the servers without the services; they end with the test run, were that killed."""
        self.supervisor = subprocess.Popen(
            daemon.command(self.data_dir, services=False, ports=ports),
            preexec_fn=lambda: guard.die_with_parent(signal.SIGKILL),
        )
        wait(lambda: control.is_running(self.data_dir) or self._has_ended())
        return control.wait_until_ready(self.data_dir)

    def _has_ended(self) -> bool:
        assert self.supervisor is not None
        assert self.supervisor.poll() is None, "the supervisor ended before it was up"
        return False

    def workbot(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [WORKBOT, "--data-dir", str(self.data_dir), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def admin(self) -> "psycopg.Connection[tuple[object, ...]]":
        address = control.endpoints(self.data_dir).admin
        password = read_secret(address.password_file, "the superuser's password")
        return psycopg.connect(make_conninfo(address.url, password=password), autocommit=True)

    def topics(self) -> set[str]:
        admin = AdminClient({"bootstrap.servers": control.endpoints(self.data_dir).kafka})
        return set(admin.list_topics(timeout=10).topics)


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="workbot-test-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o711)
        made = Machine(Path(folder) / "stack")
        made.up(made.ports)
        yield made
        control.stop(made.data_dir)
        assert made.supervisor is not None
        made.supervisor.wait(30)


def test_everything_listens_on_loopback_only(machine: Machine) -> None:
    heard = listening(descendants(control.status(machine.data_dir).pid))
    names = ("postgres", "kafka", "kafka-controller", "registry", "registry-management")
    assert {port for _, port in heard} == {machine.ports[name] for name in names}
    assert {address for address, _ in heard} == {"127.0.0.1"}


def test_secrets_are_their_owner_s_alone_and_nowhere_else(machine: Machine) -> None:
    layout = Layout(machine.data_dir)
    paths = list(layout.secrets.iterdir())
    assert {path.name for path in paths} == set(keys.NAMES)
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    assert stat.S_IMODE(layout.secrets.stat().st_mode) == 0o700
    assert stat.S_IMODE(layout.control_socket.stat().st_mode) == 0o600
    told = [
        path.read_bytes()
        for path in (*layout.logs.iterdir(), *layout.run.glob("*.*"), layout.state)
        if path.is_file()
    ]
    for pid in descendants(control.status(machine.data_dir).pid):
        with contextlib.suppress(FileNotFoundError):
            told.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    for path in paths:
        secret = path.read_bytes().strip()
        assert len(secret) == 43
        assert not any(secret in text for text in told), path.name


def test_a_second_start_is_refused_and_told_which_one_runs(machine: Machine) -> None:
    pid = control.status(machine.data_dir).pid
    for arguments in (("up",), ("up", "--detach")):
        refused = machine.workbot(*arguments)
        assert refused.returncode == 1
        assert f"already running on {machine.data_dir} (pid {pid})" in refused.stderr
        assert f"127.0.0.1:{machine.ports['kafka']}" in refused.stderr
        assert "It keeps the settings and ports it was started with" in refused.stderr
    assert control.status(machine.data_dir).pid == pid


def test_a_second_start_with_other_settings_is_told_which(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBOT_MODEL_URL", "http://127.0.0.1:1/v1")
    refused = machine.workbot("up", "--detach")
    assert refused.returncode == 1
    assert "Not as it was started: WORKBOT_MODEL_URL." in refused.stderr
    shown = machine.workbot("status")
    assert shown.returncode == 0
    assert "Not as it was started: WORKBOT_MODEL_URL." in shown.stderr


def test_a_port_that_was_asked_for_and_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        refused = Machine(tmp_path / "stack").workbot("up", "--detach", "--port", f"kafka={port}")
    assert refused.returncode == 1
    assert f"Port {port} for kafka is taken" in refused.stderr
    assert "WORKBOT_PORT_KAFKA" in refused.stderr


def test_three_deploy_steps_at_once_on_an_empty_stack_all_succeed(machine: Machine) -> None:
    command = [sys.executable, "-m", "stack.deploy", "--data-dir", str(machine.data_dir)]
    steps = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for step in steps:
        _, errors = step.communicate(timeout=60)
        assert (step.returncode, errors) == (0, "")
    assert {"documents.jobs", "documents.jobs.reader.retry", "documents.jobs.reader.dlq"} <= machine.topics()
    with machine.admin() as connection:
        owners = "SELECT datname, pg_get_userbyid(datdba) FROM pg_database WHERE datname IN ('documents', 'gateway')"
        found = set(connection.execute(owners).fetchall())
    assert found == {("documents", "workbot_owner"), ("gateway", "workbot_owner")}
    for again in (("migrate",), ("topics", "create"), ("schemas", "register")):
        assert machine.workbot(*again).returncode == 0


@pytest.mark.parametrize(
    ("away", "commands"),
    [
        ("postgres", ["migrate", "erase --tenant acme --sender ann --yes", REPLAY]),
        ("registry", ["schemas register"]),
        ("kafka", ["topics create", "events positions", REPLAY]),
    ],
)
def test_a_command_that_needs_a_part_that_is_away_says_which_and_what_to_do(
    machine: Machine, away: str, commands: list[str]
) -> None:
    start = f"`workbot --data-dir {machine.data_dir} start {away}`"
    said = f"{away} is not ready (stopped: by hand; {start} starts it).\n"
    assert machine.workbot("stop", away).returncode == 0
    try:
        for command in commands:
            refused = machine.workbot(*command.split())
            assert (refused.returncode, refused.stdout, refused.stderr) == (1, "", said)
        shown = machine.workbot("status")
        assert shown.returncode == 1
        assert said in shown.stderr
    finally:
        assert machine.workbot("start", away).returncode == 0
    assert control.wait_until_ready(machine.data_dir).ready


@pytest.mark.parametrize("what", ["stop", "start"])
def test_a_part_there_is_not_is_told_in_the_same_words(machine: Machine, what: str) -> None:
    refused = machine.workbot(what, "nope")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "There is no part named 'nope'. There are: postgres, kafka, registry.\n"


@pytest.mark.parametrize("name", ["postgres", "kafka"])
def test_a_killed_child_comes_back(machine: Machine, name: str) -> None:
    before = control.status(machine.data_dir).child(name)
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    wait(lambda: control.status(machine.data_dir).child(name).restarts > before.restarts, 30)
    after = control.wait_until_ready(machine.data_dir).child(name)
    assert after.pid not in (None, before.pid)


def test_a_kill_of_the_supervisor_ends_every_child_and_the_next_start_finds_everything(machine: Machine) -> None:
    with machine.admin() as connection:
        connection.execute("CREATE TABLE kept (word text)")
        connection.execute("INSERT INTO kept VALUES ('still here')")
    kept_topics = machine.topics()
    pids = descendants(control.status(machine.data_dir).pid)
    assert len(pids) >= 6
    if os.geteuid() == 0:
        assert any(Path(f"/proc/{pid}").stat().st_uid != 0 for pid in pids), "Postgres must not run as root"
    assert machine.supervisor is not None
    machine.supervisor.kill()
    machine.supervisor.wait()

    # At once: it must wait for the old children, or it would find their ports taken.
    machine.up({})
    assert not any(alive(pid) for pid in pids)
    assert state.read(Layout(machine.data_dir).state).ports == {
        name: machine.ports[name] for name in ports.INFRASTRUCTURE
    }
    with machine.admin() as connection:
        assert connection.execute("SELECT word FROM kept").fetchall() == [("still here",)]
    assert machine.topics() == kept_topics


def test_status_and_logs_show_what_runs(machine: Machine) -> None:
    shown = machine.workbot("status")
    assert shown.returncode == 0
    for name in ("postgres", "kafka", "registry"):
        assert name in shown.stdout
    assert "database system is ready" in machine.workbot("logs", "postgres", "-n", "200").stdout
    unknown = machine.workbot("logs", "zookeeper")
    assert unknown.returncode == 1
    assert "kafka, postgres, registry" in unknown.stderr


def test_down_stops_it_and_says_so_when_nothing_runs(machine: Machine) -> None:
    pids = descendants(control.status(machine.data_dir).pid)
    stopped = machine.workbot("down")
    assert (stopped.returncode, stopped.stdout) == (0, "The stack has stopped.\n")
    assert not any(alive(pid) for pid in pids)
    again = machine.workbot("down")
    assert (again.returncode, again.stdout) == (0, f"No stack is running on {machine.data_dir}.\n")
    assert machine.workbot("status").returncode == 1
    assert machine.data_dir.exists()


def listening(pids: set[int]) -> set[tuple[str, int]]:
    """Every TCP address these processes listen on; IPv4 ones without their IPv6 clothing."""
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    heard = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text("ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                raw, _, port = fields[1].partition(":")
                words = bytes.fromhex(raw)
                packed = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                heard.add((socket.inet_ntop(family, packed).removeprefix("::ffff:"), int(port, 16)))
    return heard


def test_a_pid_file_whose_number_belongs_to_another_program_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "postmaster.pid"
    path.write_text(f"{os.getpid()}\n{tmp_path}\n", "ascii")
    postgres.forget_stale_pid(tmp_path)
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another user for Postgres")
def test_root_never_opens_a_closed_folder(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    layout = Layout(closed / "stack")
    layout.create()
    home = pghome.find(layout, "workbot-postgres")
    assert home.user is not None
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert home.data.parent == pghome.CLOSED_HOME
    assert stat.S_IMODE(pghome.CLOSED_HOME.stat().st_mode) == 0o700
    assert pghome.reachable(pghome.CLOSED_HOME, home.user)
    assert not pghome.reachable(layout.data, home.user)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_data_of_another_user_is_left_alone(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.create()
    (layout.data / "postgres").mkdir()
    with pytest.raises(Misconfigured, match=r"another user's \(uid 0\)"):
        pghome.find(layout, "workbot-postgres")
