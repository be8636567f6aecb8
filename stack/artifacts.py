"""Jars and archives from the Maven repository: pinned by sha256, fetched once, checked at every start."""

import hashlib
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from jgo.env import LockedDependency, LockFile
from jgo.maven import MavenContext, PythonResolver

from messaging.errors import Misconfigured
from stack import locks

LOCKS = Path(__file__).parent

REMEDY = (
    "Behind a proxy, set HTTPS_PROXY, and REQUESTS_CA_BUNDLE to the file of its certificates; or set"
    " WORKBOT_MAVEN_URL to a Maven repository that can be reached from here. Then start again."
)
"""What a person can do about a download that failed."""

_TIMEOUT = 60
_TRIES = 3
_PARTIAL = ".partial-"


class Progress(Protocol):
    """Who is told how the downloads go. May be called from several threads."""

    def note(self, text: str) -> None:
        """One line a person should see."""

    def begin(self, files: int) -> AbstractContextManager[None]:
        """Around a batch of downloads."""

    def file(self, name: str, size: int) -> AbstractContextManager[Callable[[int], None]]:
        """Around one download; the function it yields is told the bytes as they come."""


class DownloadFailed(Misconfigured):
    """An artifact could not be fetched, or what came was not what the lock names."""


class Store:
    """The download cache. Safe when several stacks use it at once."""

    def __init__(self, cache: Path, progress: Progress, maven_url: str | None = None) -> None:
        self._cache = cache.expanduser()
        self._progress = progress
        self._broken_off = threading.Event()
        self._repositories = {"given": maven_url.rstrip("/")} if maven_url else None

    def jars(self, lock_path: Path) -> list[Path]:
        """The files a lock names, each with the pinned content. Raises DownloadFailed."""
        return self._files(LockFile.load(lock_path).dependencies)

    def folder(self, lock_path: Path) -> Path:
        """Where the one archive in a lock is unpacked, or will be."""
        (archive,) = LockFile.load(lock_path).dependencies
        return self._cache / f"{archive.artifactId}-{archive.version}-{str(archive.sha256)[:12]}"

    def unpacked(self, lock_path: Path) -> Path:
        """The folder that the one archive in a lock unpacks to, with every file as it was. Raises DownloadFailed."""
        (archive,) = LockFile.load(lock_path).dependencies
        folder = self.folder(lock_path)
        if not _tree_intact(folder):
            (path,) = self._files([archive])
            with self._alone():
                if not _tree_intact(folder):
                    self._unpack(path, folder)
            path.unlink(missing_ok=True)
        return folder

    def _files(self, wanted: list[LockedDependency]) -> list[Path]:
        if self._bad(wanted):
            with self._alone():
                missing = self._bad(wanted)
                if missing:
                    self._fetch(missing)
        return [self._path(artifact) for artifact in wanted]

    def _path(self, artifact: LockedDependency) -> Path:
        classifier = f"-{artifact.classifier}" if artifact.classifier else ""
        name = f"{artifact.artifactId}-{artifact.version}{classifier}.{artifact.packaging}"
        return self._cache / "maven" / artifact.groupId / name

    def _bad(self, wanted: list[LockedDependency]) -> list[LockedDependency]:
        with ThreadPoolExecutor(4) as pool:
            intact = pool.map(lambda artifact: _sha256(self._path(artifact)) == artifact.sha256, wanted)
            return [artifact for artifact, good in zip(wanted, intact, strict=True) if not good]

    def _alone(self) -> AbstractContextManager[None]:
        self._cache.mkdir(parents=True, exist_ok=True)
        return locks.exclusive(
            self._cache / ".lock", lambda: self._progress.note("Waiting for another download into the same cache …")
        )

    def _fetch(self, missing: list[LockedDependency]) -> None:
        for left_over in self._cache.glob(f"{_PARTIAL}*"):
            shutil.rmtree(left_over)
        with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=self._cache) as partial:
            context = MavenContext(
                repo_cache=Path(partial),
                remote_repos=self._repositories,
                timeout=_TIMEOUT,
                resolver=PythonResolver(progress_callback=self._file),
            )
            with self._progress.begin(len(missing)), ThreadPoolExecutor(4) as pool:
                try:
                    list(pool.map(lambda artifact: self._fetch_one(context, artifact), missing))
                except BaseException:
                    # Also for Ctrl-C: leaving the pool waits for the downloads under way.
                    self._broken_off.set()
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise

    @contextmanager
    def _file(self, name: str, size: int) -> Iterator[Callable[[int], None]]:
        with self._progress.file(name, size) as advance:

            def received(count: int) -> None:
                if self._broken_off.is_set():
                    raise DownloadFailed("The download was broken off.")
                advance(count)

            yield received

    def _fetch_one(self, context: MavenContext, wanted: LockedDependency) -> None:
        path = self._path(wanted)
        component = context.project(wanted.groupId, wanted.artifactId).at_version(wanted.version)
        artifact = component.artifact(classifier=wanted.classifier or "", packaging=wanted.packaging)
        fault = ""
        for _ in range(_TRIES):
            try:
                fetched = artifact.resolve()
            except (OSError, RuntimeError) as error:
                fault = f"{path.name} could not be downloaded: {error}"
            else:
                if (found := _sha256(fetched)) == wanted.sha256:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(fetched, path)
                    return
                fault = f"{path.name} is not the file the lock names: its sha256 is {found}."
            if artifact.cached_path is not None:
                artifact.cached_path.unlink(missing_ok=True)
        raise DownloadFailed(f"{fault.rstrip('.')}. {REMEDY}")

    def _unpack(self, archive: Path, folder: Path) -> None:
        self._progress.note(f"Unpacking {archive.name} …")
        with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=self._cache) as partial:
            fresh = Path(partial) / "fresh"
            with tarfile.open(archive) as tar:
                # An attribute, not a parameter: the first releases of Python 3.11 have neither.
                tar.extraction_filter = getattr(tarfile, "data_filter", None)
                tar.extractall(fresh)  # noqa: S202
            if folder.exists():
                os.rename(folder, Path(partial) / "broken")
            os.rename(fresh, folder)
            _manifest(folder).write_text("".join(f"{h}  {n}\n" for n, h in _tree(folder).items()), "utf-8")


def _sha256(path: Path) -> str:
    """The hash in hex; empty when there is no such file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return ""


def _manifest(folder: Path) -> Path:
    return folder.with_name(folder.name + ".sha256")


def _tree(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor(4) as pool:
        return {
            str(path.relative_to(folder)): hash_ for path, hash_ in zip(files, pool.map(_sha256, files), strict=True)
        }


def _tree_intact(folder: Path) -> bool:
    try:
        lines = _manifest(folder).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return False
    return {name: hash_ for hash_, _, name in (line.partition("  ") for line in lines)} == _tree(folder)
