"""A stack of the fault run's own: everything it strikes is its own, and gone afterwards."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stack import control
from stack.layout import Layout
from tests.fixtures.ports import free_ports
from tests.fixtures.stack import supervisor


@contextmanager
def own_stack(*, services: bool, environment: Mapping[str, str] | None = None) -> Iterator[Path]:
    """A running stack on free ports, in a folder that is deleted at the end; yields its data directory."""
    with tempfile.TemporaryDirectory(prefix="workbot-chaos-", ignore_cleanup_errors=True) as folder:
        # Postgres's own user must be able to pass when the run is root's.
        os.chmod(folder, 0o711)
        data_dir = Path(folder) / "stack"
        with supervisor(data_dir, free_ports(), services=services, environment=environment or {}):
            control.wait_until_ready(data_dir)
            yield data_dir


def keep_logs(data_dir: Path, where: Path) -> None:
    """Copy what the stack's processes have said, to be read when its folder is gone."""
    shutil.copytree(Layout(data_dir).logs, where, dirs_exist_ok=True)
