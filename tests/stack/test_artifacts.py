"""Downloads: pinned by hash, fetched once, repaired when the cache is broken. Against a repository on loopback."""

import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jgo.env import LockedDependency, LockFile

from stack.artifacts import DownloadFailed, Store
from stack.progress import Lines

CONTENT = b"a jar " * 1000


class Repository:
    """What a Maven repository would serve; `served` are the paths asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.served: list[str] = []
        repository = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = repository.files.get(self.path)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                if content is not None:
                    repository.served.append(self.path)
                    self.wfile.write(content)

            def log_message(self, *_args: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def repository() -> Iterator[Repository]:
    made = Repository()
    made.files["/org/example/thing/1.0/thing-1.0.jar"] = CONTENT
    thread = threading.Thread(target=made.server.serve_forever, args=(0.02,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return write_lock(tmp_path / "jars.lock.toml", CONTENT)


def write_lock(path: Path, content: bytes, packaging: str = "jar") -> Path:
    sha256 = hashlib.sha256(content).hexdigest()
    LockFile([LockedDependency("org.example", "thing", "1.0", packaging=packaging, sha256=sha256)]).save(path)
    return path


def store(tmp_path: Path, repository: Repository, said: list[str] | None = None) -> Store:
    heard = [] if said is None else said
    return Store(tmp_path / "cache", Lines(heard.append), repository.url)


def test_a_file_is_fetched_once(tmp_path: Path, repository: Repository, lock: Path) -> None:
    said: list[str] = []
    (jar,) = store(tmp_path, repository, said).jars(lock)
    assert jar.read_bytes() == CONTENT
    assert said == ["Downloading 1 file …", "  thing-1.0.jar (0.0 MB)", "Downloads are complete and verified."]
    assert store(tmp_path, repository).jars(lock) == [jar]
    assert len(repository.served) == 1


@pytest.mark.parametrize("broken", [CONTENT[:-1], b"", b"x" + CONTENT[1:]], ids=["cut short", "empty", "changed"])
def test_a_broken_entry_is_fetched_again(tmp_path: Path, repository: Repository, lock: Path, broken: bytes) -> None:
    (jar,) = store(tmp_path, repository).jars(lock)
    jar.write_bytes(broken)
    store(tmp_path, repository).jars(lock)
    assert jar.read_bytes() == CONTENT
    assert len(repository.served) == 2


def test_what_does_not_match_its_hash_is_refused_and_not_kept(
    tmp_path: Path, repository: Repository, lock: Path
) -> None:
    repository.files["/org/example/thing/1.0/thing-1.0.jar"] = b"something else"
    with pytest.raises(DownloadFailed, match="not the file the lock names"):
        store(tmp_path, repository).jars(lock)
    assert not list((tmp_path / "cache").rglob("*.jar"))


def test_a_file_nobody_has_is_named(tmp_path: Path, repository: Repository, lock: Path) -> None:
    repository.files.clear()
    with pytest.raises(DownloadFailed, match=r"thing-1\.0\.jar could not be downloaded") as failed:
        store(tmp_path, repository).jars(lock)
    for remedy in ("HTTPS_PROXY", "REQUESTS_CA_BUNDLE", "WORKBOT_MAVEN_URL"):
        assert remedy in str(failed.value)


def test_several_at_once_fetch_it_once(tmp_path: Path, repository: Repository, lock: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: store(tmp_path, repository).jars(lock)[0].read_bytes(), range(4)))
    assert found == [CONTENT] * 4
    assert len(repository.served) == 1


def test_what_a_killed_download_left_is_swept(tmp_path: Path, repository: Repository, lock: Path) -> None:
    left = tmp_path / "cache" / ".partial-left"
    left.mkdir(parents=True)
    store(tmp_path, repository).jars(lock)
    assert not left.exists()


def test_a_broken_unpacked_archive_is_unpacked_anew(tmp_path: Path, repository: Repository) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name in ("run.jar", "lib/main.jar"):
            entry = tarfile.TarInfo(name)
            entry.size = len(CONTENT)
            tar.addfile(entry, io.BytesIO(CONTENT))
    repository.files["/org/example/thing/1.0/thing-1.0.tar.gz"] = content.getvalue()
    lock = write_lock(tmp_path / "archive.lock.toml", content.getvalue(), packaging="tar.gz")

    home = store(tmp_path, repository).unpacked(lock)
    assert (home / "lib" / "main.jar").read_bytes() == CONTENT
    store(tmp_path, repository).unpacked(lock)
    assert len(repository.served) == 1

    (home / "lib" / "main.jar").write_bytes(b"")
    assert store(tmp_path, repository).unpacked(lock) == home
    (home / "run.jar").unlink()
    store(tmp_path, repository).unpacked(lock)
    assert (home / "lib" / "main.jar").read_bytes() == (home / "run.jar").read_bytes() == CONTENT
    assert len(repository.served) == 3


def test_the_committed_locks_pin_every_file_and_name_no_host() -> None:
    from stack.artifacts import LOCKS

    for path in (LOCKS / "jgo.lock.toml", LOCKS / "apicurio.lock.toml"):
        dependencies = LockFile.load(path).dependencies
        assert dependencies
        assert all(len(dependency.sha256 or "") == 64 for dependency in dependencies)
        assert "://" not in path.read_text("utf-8")
