"""The recipes in docs/howto/add-*.md, carried out on a copy of the tree: they work, and touch what they list.

A recipe begins at the line "Files touched:" and goes on to the next one. Its steps are sentences over a block:

    New `path`:                           the block is the file
    At the end of `path`:                 the block is added
    In `path`, above `text`:              … above, or below, the one line that holds the text
    In `path`, instead of `text`:         … in its place; the text stands in the file once
    In `path`, this:  (a block)  becomes: the same for text of several lines

A block of `sh` holds commands; they are run.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from messaging.settings import inherited_environment
from tests.fixtures.processes import migrated, running
from tests.fixtures.stack import Infra

ROOT = Path(__file__).parent.parent
HOWTO = ROOT / "docs" / "howto"
PAGES = ("add-an-event", "add-a-version", "add-a-consumer", "add-a-service")

_COPIED = (
    "docs",
    "loadtest",
    "messaging",
    "schemas",
    "services",
    "stack",
    "tests",
    "web",
    "pyproject.toml",
    "README.md",
)
_SKIPPED = shutil.ignore_patterns("__pycache__", "out", "*.pyc")

_BEGIN = re.compile(r"^Files touched:\n\n((?:- .*\n)+)", re.MULTILINE)
_FILE = re.compile(r"^- `([^`]+)`( \(new\))?: \S", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STEP = re.compile(
    r"(?:(?P<new>New) `(?P<a>[^`]+)`|(?P<end>At the end of) `(?P<b>[^`]+)`"
    r"|In `(?P<c>[^`]+)`, (?P<how>above|below|instead of) (?P<ticks>`{1,2})(?P<text>.+?)(?P=ticks)):"
)
_THIS = re.compile(r"In `([^`]+)`, this:")

PURE = """
def pytest_collection_modifyitems(config, items):
    live = [item for item in items if "infra" in item.fixturenames]
    config.hook.pytest_deselected(items=live)
    items[:] = [item for item in items if item not in live]
"""
"""A plugin for the tests inside the copy: what a recipe invents does not belong on the servers of this run."""


@dataclass(frozen=True)
class Step:
    """One edit: `how` is new, end, above, below or instead of."""

    how: str
    path: str
    text: str
    block: str


@dataclass(frozen=True)
class Recipe:
    """`files` by path: whether it is new."""

    name: str
    files: dict[str, bool]
    steps: tuple[Step | str, ...]


def recipes(page: str, text: str) -> list[Recipe]:
    """The recipes of a page, in order. Fails on a block that is neither a step's nor commands."""
    begins = list(_BEGIN.finditer(text))
    found = []
    for number, begin in enumerate(begins):
        listed = _FILE.findall(begin[1])
        assert len(listed) == begin[1].count("\n"), f"{page}: each file has its line: path, whether new, what for"
        assert len({path for path, _ in listed}) == len(listed), f"{page}: a file stands there twice"
        body = text[begin.end() : begins[number + 1].start() if number + 1 < len(begins) else len(text)]
        name = page if len(begins) == 1 else f"{page}-{number + 1}"
        found.append(Recipe(name, {path: bool(new) for path, new in listed}, tuple(_steps(page, body))))
    return found


def _steps(page: str, body: str) -> Iterator[Step | str]:
    this: tuple[str, str] | None = None
    for block in _BLOCK.finditer(body):
        if block[1] == "sh":
            yield from block[2].splitlines()
            continue
        line = body[: block.start()].rstrip("\n").rpartition("\n")[2]
        if this is not None:
            assert line == "becomes:", f"{page}: it does not say what {this[1]!r} becomes"
            yield Step("instead of", *this, block[2].rstrip("\n"))
            this = None
        elif old := _THIS.fullmatch(line):
            this = old[1], block[2].rstrip("\n")
        else:
            step = _STEP.fullmatch(line)
            assert step is not None, f"{page}: {line!r} does not say where the block under it belongs"
            how = "new" if step["new"] else "end" if step["end"] else step["how"]
            yield Step(how, step["a"] or step["b"] or step["c"], step["text"] or "", block[2])


RECIPES = [recipe for page in PAGES for recipe in recipes(page, (HOWTO / f"{page}.md").read_text("utf-8"))]


class Copy:
    """The tree without what is made, and a way to run things in it."""

    def __init__(self, root: Path, apart: Path) -> None:
        self.root = root
        (apart / "only_pure.py").write_text(PURE)
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=_SKIPPED)
            else:
                shutil.copy2(source, root / name)
        # Before the editable install's own path, and with nothing of ours told to what runs there.
        path = f"{root}{os.pathsep}{apart}"
        self.environment = inherited_environment() | {
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(apart / "hypothesis"),
        }
        self._before = self._files()

    def carry_out(self, step: Step | str) -> None:
        """Edit a file, or run a command. Fails where the page is wrong."""
        if isinstance(step, str):
            assert step in COMMANDS, f"{step}: not a command that a test knows to run"
            COMMANDS[step](self)
            return
        file = self.root / step.path
        if step.how == "new":
            assert not file.exists(), f"{step.path} is there already"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(step.block, "utf-8")
            return
        old = file.read_text("utf-8")
        if step.how == "end":
            file.write_text(old + step.block, "utf-8")
            return
        assert old.count(step.text) == 1, f"{step.path} holds {step.text!r} {old.count(step.text)} times"
        if step.how == "instead of":
            file.write_text(old.replace(step.text, step.block.rstrip("\n")), "utf-8")
            return
        at = old.index(step.text)
        place = old.rfind("\n", 0, at) + 1 if step.how == "above" else old.index("\n", at) + 1
        file.write_text(old[:place] + step.block + old[place:], "utf-8")

    def changed(self) -> dict[str, bool]:
        """What differs from the tree, by path: whether it is new."""
        now = self._files()
        assert self._before.keys() <= now.keys()
        return {path: path not in self._before for path in now if self._before.get(path) != now[path]}

    def _files(self) -> dict[str, str]:
        return {
            path.relative_to(self.root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.root.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    def python(self, *arguments: str) -> None:
        """Run Python in the copy. Fails with what it said."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}"

    def command(self, *arguments: str) -> None:
        """Run the `workbot` command in the copy."""
        self.python("-c", "from stack.cli import app; app()", *arguments)

    def lint(self) -> None:
        """Style of what changed, and the direction of imports. Types would take half a minute more."""
        changed = [path for path in self.changed() if path.endswith(".py")]
        if changed:
            self.python("-m", "ruff", "check", "--no-cache", *changed)
            self.python("-m", "ruff", "format", "--no-cache", "--check", *changed)
        self.python("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache")

    def test(self, *paths: str) -> None:
        """The tests there that need no servers."""
        self.python("-m", "pytest", "-p", "no:cacheprovider", "-p", "only_pure", *paths)


_CHECKED = ("tests/schemas", "tests/test_execution.py", "tests/test_wiring.py")

COMMANDS: dict[str, Callable[[Copy], None]] = {
    "workbot schemas asyncapi": lambda copy: copy.command("schemas", "asyncapi"),
    "make lint": Copy.lint,
    f"python -m pytest {' '.join(_CHECKED)}": lambda copy: copy.test(*_CHECKED),
}


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    for name in ("tree", "apart"):
        (tmp_path / name).mkdir()
    return Copy(tmp_path / "tree", tmp_path / "apart")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_works_and_touches_the_files_it_lists(recipe: Recipe, copy: Copy) -> None:
    for step in recipe.steps:
        copy.carry_out(step)
    assert copy.changed() == recipe.files


def test_every_recipe_ends_with_the_checks() -> None:
    assert {recipe.name.removesuffix("-1").removesuffix("-2") for recipe in RECIPES} == set(PAGES)
    for recipe in RECIPES:
        commands = [step for step in recipe.steps if isinstance(step, str)]
        assert recipe.steps[-2:] == tuple(commands[-2:]) == ("make lint", f"python -m pytest {' '.join(_CHECKED)}")


def test_the_new_service_starts(infra: Infra, copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its database from its own migrations, then the process itself: ready, and ended in order."""
    (recipe,) = (recipe for recipe in RECIPES if recipe.name == "add-a-service")
    for step in recipe.steps:
        if isinstance(step, Step):
            copy.carry_out(step)
    monkeypatch.setenv("PYTHONPATH", copy.environment["PYTHONPATH"])
    folder = tmp_path / "run"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(migrated(infra, "audit", copy.root / "services" / "audit" / "migrations"))
        stack.enter_context(running(infra, home, "audit", "api", folder, {}))
        assert home.rows("select count(*) from deeds") == [(0,)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Files touched:\n\n- `a`: why\n\nSomewhere:\n\n```toml\na\n```\n", "does not say where"),
        ("Files touched:\n\n- `a`: why\n- `a`: why\n", "twice"),
        ("Files touched:\n\n- a, b\n", "each file has its line"),
    ],
)
def test_a_page_that_cannot_be_carried_out_shows(text: str, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        recipes("page", text)


def test_a_step_that_does_not_fit_shows(copy: Copy) -> None:
    path = "schemas/topics.toml"
    for step, complaint in (
        (Step("new", path, "", "a\n"), "is there already"),
        (Step("above", path, "no such text", "a\n"), "0 times"),
        (Step("instead of", path, "partitions", "a\n"), "times"),
        ("rm -rf everything", "not a command"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            copy.carry_out(step)
    assert copy.changed() == {}
