"""What the command says of a failure: one sentence, and what to do."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException
from typer import Exit

from messaging.errors import Misconfigured, Outage
from stack import daemon, sentences
from stack.control import DEFAULT_DATA_DIR
from stack.terminal import faults
from tests.fixtures.ports import free_port

AWAY = "`workbot status` shows how {0} is, `workbot start {0}` starts it."


def connect() -> None:
    psycopg.connect(f"postgresql://owner@127.0.0.1:{free_port()}/documents")


def get() -> None:
    httpx.get(f"http://127.0.0.1:{free_port()}", trust_env=False)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Misconfigured("Topics are missing."), "Topics are missing."),
        (Outage("Kafka does not answer", "kafka"), f"Kafka does not answer. {AWAY.format('kafka')}"),
        (Outage("No answer.", "database"), f"No answer. {AWAY.format('postgres')}"),
        (Outage("No answer.", "registry"), f"No answer. {AWAY.format('registry')}"),
        (Outage("It has not carried all.", "bench"), "It has not carried all."),
        (psycopg.OperationalError('FATAL:  database "x" does not exist\n'), "up to date."),
        (psycopg.errors.LockNotAvailable("canceled\nCONTEXT: x"), "Postgres: canceled."),
        (KafkaException(KafkaError(KafkaError._TIMED_OUT)), f"Kafka: Local: Timed out. {AWAY.format('kafka')}"),
        (KafkaException("no such context"), f"Kafka: no such context. {AWAY.format('kafka')}"),
        (KafkaException(), f"Kafka: KafkaException. {AWAY.format('kafka')}"),
        (PermissionError(13, "Permission denied", "/x"), "/x: Permission denied. Does it belong to another user?"),
        (OSError(28, "No space left on device", "/x"), "/x: No space left on device."),
        (OSError(28, "No space left on device"), "No space left on device."),
    ],
)
def test_each_is_one_line_with_what_to_do(error: Exception, told: str) -> None:
    said = sentences.told(error)
    assert said.endswith(told)
    assert "\n" not in said


def test_what_postgres_hints_on_further_lines_is_left_out() -> None:
    with pytest.raises(psycopg.OperationalError, match="\n") as refused:
        connect()
    said = sentences.told(refused.value)
    assert said.startswith("Postgres: connection failed: ")
    assert said.endswith(f"Connection refused. {AWAY.format('postgres')}")
    assert not set("\n\t") & set(said)
    assert "?" not in said


@pytest.mark.parametrize("asked", [connect, get])
def test_a_server_that_is_away_ends_any_command_without_a_traceback(
    asked: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Exit) as ended, faults():
        asked()
    assert ended.value.exit_code == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_fault_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), faults():
        raise ZeroDivisionError
    with pytest.raises(BrokenPipeError), faults():
        raise BrokenPipeError(32, "Broken pipe")


def test_commands_are_those_for_the_folder() -> None:
    text = "See `workbot status`; `workbot --data-dir /y up`, not `make up` or workbot."
    assert sentences.for_folder(text, DEFAULT_DATA_DIR) == text
    assert sentences.for_folder(text, Path("/x y")) == (
        "See `workbot --data-dir '/x y' status`; `workbot --data-dir /y up`, not `make up` or workbot."
    )


def test_a_supervisor_that_cannot_make_its_folder_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "stack"
    command = daemon.command(folder, services=False, ports={})
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (1, f"{folder}: Not a directory.\n")
