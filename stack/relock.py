"""`python -m stack.relock`: resolve jgo.toml again and write jgo.lock.toml, with the sha256 of every jar."""

import sys
import tempfile
from pathlib import Path

from jgo.env import EnvironmentSpec, LockFile, compute_spec_hash
from jgo.maven import MavenContext

from stack.artifacts import LOCKS


def relock(spec_path: Path, lock_path: Path) -> int:
    """Write the lock of a spec; returns how many artifacts it holds. Every jar is downloaded afresh to be hashed."""
    spec = EnvironmentSpec.load(spec_path)
    with tempfile.TemporaryDirectory() as repository:
        context = MavenContext(repo_cache=Path(repository), timeout=60)
        named, transitive = context.resolver.resolve([context.create_dependency(c) for c in spec.coordinates])
        lock = LockFile.from_resolved_dependencies(
            named + transitive, environment_name=spec.name, spec_hash=compute_spec_hash(spec_path)
        )
    lock.save(lock_path)
    return len(lock.dependencies)


if __name__ == "__main__":
    count = relock(LOCKS / "jgo.toml", LOCKS / "jgo.lock.toml")
    sys.stdout.write(f"jgo.lock.toml: {count} artifacts\n")
