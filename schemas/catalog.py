"""Every version of every event, read from avro/, and the codec made of them."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from messaging.codec import Codec, Contract
from messaging.errors import Misconfigured
from messaging.registry import Registry, Schema
from schemas import events

ROOT = Path(__file__).parent
DIGESTS = ROOT / "digests.txt"

_FILE = re.compile(r"v([1-9][0-9]*)\.(0|[1-9][0-9]*)\.avsc")


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Which version of which event: a record's type, its major, and the minor it was written in."""

    type: str
    major: int
    minor: int

    @property
    def file(self) -> Path:
        """Its Avro schema."""
        return ROOT / "avro" / self.type / f"v{self.major}.{self.minor}.avsc"

    @property
    def examples(self) -> Path:
        """The folder of its examples: one JSON file each, named for what it shows."""
        return ROOT / "examples" / self.type / f"v{self.major}.{self.minor}"

    def schema(self) -> Schema:
        """Read the schema. Raises Misconfigured when the file is missing or no JSON object."""
        try:
            schema = json.loads(self.file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise Misconfigured(f"The schema of {self} cannot be read: {error}") from error
        if not isinstance(schema, dict):
            raise Misconfigured(f"The schema of {self} is not a record.")
        return schema

    def __str__(self) -> str:
        return f"{self.type} v{self.major}.{self.minor}"


def versions() -> list[Version]:
    """Every version there is a file for: by type, oldest first.

    Raises Misconfigured for a file whose name is not v<major>.<minor>.avsc.
    """
    found = []
    for path in (ROOT / "avro").glob("*/*"):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise Misconfigured(f"{path.relative_to(ROOT)} is not named v<major>.<minor>.avsc.")
        found.append(Version(path.parent.name, int(match[1]), int(match[2])))
    return sorted(found)


def line(type_: str, major: int) -> list[Version]:
    """The versions within one major, oldest first: each must read all others."""
    return [version for version in versions() if (version.type, version.major) == (type_, major)]


def contracts() -> list[Contract]:
    """Each event class with its topic and newest schema. Raises Misconfigured for a class without a schema."""
    newest = {(version.type, version.major): version for version in versions()}
    found = []
    for event in events.ALL:
        version = newest.get((event.TYPE, event.MAJOR))
        if version is None:
            raise Misconfigured(f"{event.__name__} has no file avro/{event.TYPE}/v{event.MAJOR}.0.avsc.")
        found.append(Contract(event, event.TOPIC, version.schema()))
    return found


def codec(registry: Registry) -> Codec:
    """The codec of a process: it knows every event of the house."""
    return Codec(registry, contracts())


def digests() -> dict[str, str]:
    """The sha256 of each schema and example as it is now, by path below schemas/; `digests.txt` keeps the first."""
    files = sorted(path for folder in ("avro", "examples") for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
