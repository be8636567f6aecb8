"""The folders and files of one data directory."""

import secrets
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything one stack writes, below `root`. Nothing else in the house knows these names."""

    root: Path

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def secrets(self) -> Path:
        return self.root / "secrets"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def storage(self) -> Path:
        return self.root / "storage"

    @property
    def tables(self) -> Path:
        """What analytics counts with, on disk; made again from Kafka when it is gone."""
        return self.root / "tables"

    @property
    def state(self) -> Path:
        return self.root / "stack.json"

    @property
    def control_socket(self) -> Path:
        return self.run / "control.sock"

    @property
    def supervisor_lock(self) -> Path:
        """Held by the supervisor while it runs."""
        return self.run / "supervisor.lock"

    @property
    def children_lock(self) -> Path:
        """Held, shared, by every guard and child: free means that nothing of an earlier run is alive."""
        return self.run / "children.lock"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def create(self) -> None:
        """Make the folders. Only `root` and `data` may be entered by others: Postgres's own user passes through."""
        for folder in (self.root, self.data):
            folder.mkdir(parents=True, exist_ok=True)
        for folder in (self.run, self.logs, self.secrets, self.storage, self.tables):
            folder.mkdir(mode=0o700, exist_ok=True)

    def identity(self) -> str:
        """A name for this data directory that no other has, made once."""
        path = self.run / "identity"
        if not path.exists():
            path.write_text(secrets.token_hex(8), "ascii")
        return path.read_text("ascii")
