"""As whom Postgres runs."""

import pwd
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stack import pghome
from stack.child import System


def test_two_that_start_at_once_on_a_fresh_machine_make_one_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Barrier(2)
    seen = threading.local()
    made: list[str] = []

    def look(name: str) -> Any:
        found = bool(made)
        if not getattr(seen, "before", False):
            # Neither goes on before both have seen that there is no such user.
            seen.before = True
            looked.wait(30)
        if found:
            return SimpleNamespace(pw_uid=901, pw_gid=902)
        raise KeyError(name)

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[0].endswith("useradd")
        made.append(command[-1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(pghome, "_MAKING_USER", tmp_path / "lock")
    monkeypatch.setattr(pwd, "getpwnam", look)
    monkeypatch.setattr(subprocess, "run", run)
    with ThreadPoolExecutor(2) as threads:
        users = list(threads.map(pghome._system_user, ["fresh", "fresh"]))
    assert users == [System(901, 902)] * 2
    assert made == ["fresh"]
