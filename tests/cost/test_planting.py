"""Another user plants machine code wherever a run might read it, before the run or after it.

What is planted fills in 666, where it is loaded. As root, the other user is a real one (nobody, by
number); else folders and files have the modes and links by which another could have planted them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from planner.cost import _machine_code, _private_folder
from planner.cost._jit import jit
from planner.cost._llvm import machine_code
from planner.cost._private_folder import CACHE_VARIABLE
from planner.cost.tables import Array

IS_ROOT = os.getuid() == 0
NOBODY = 65534
RIGHT, WRONG = "[inf, 3.0, 4.0, 8.0]", "[666.0, 666.0, 666.0, 666.0]"
RUN = """
import numpy as np
from planner.cost import _entry, compiled
from planner.cost._machine_code import cache_folder

kept = []
write = _entry.write_code
_entry.write_code = lambda *given: kept.append(given[0]) or write(*given)
totals = np.empty((3, 4))
places, seconds = np.array([1, 2, 0, 1]), np.array([1.0, 5.0, 2.0, 3.0])
options, chosen = np.array([[0, 2], [2, 4]]), np.zeros(2, np.int64)
compiled.least_together(options, places, seconds, False, totals, chosen)
print(totals[2].tolist(), cache_folder(), *kept, sep="; ")
"""


@jit
def evil(_o: Array, _p: Array, _s: Array, _largest: bool, totals: Array, _chosen: Array) -> None:
    """What the attacker wants to run instead of `least_together`."""
    for first in range(totals.shape[0]):
        for place in range(totals.shape[1]):
            totals[first, place] = 666.0


@pytest.fixture(scope="module")
def planted() -> bytes:
    """A cache file as the loader wants it, of the attacker's function."""
    whole, numbers = np.zeros(1, np.int64), np.zeros(1)
    arguments = [np.zeros((1, 2), np.int64), whole, numbers, 0, np.zeros((1, 1)), whole]
    rest = b"evil\0" + machine_code("evil", evil, arguments)
    return sha256(rest).digest() + rest


class Scene:
    """A victim's home with its cache, a folder for temporary files, and the attacker's folder."""

    def __init__(self, folder: Path, planted: bytes) -> None:
        self.planted = planted
        self.inside = Path("kernels") / _machine_code.source_hash()
        self.name = "least_together-0123456789abcdef"
        self.home, self.temporary, self.attackers = (
            folder / name for name in ("home", "tmp", "attackers")
        )
        self.cache = self.home / ".cache"
        self.usual = self.cache / "trainplan"
        self.fallback = self.temporary / f"trainplan-{os.getuid()}"
        folders = (
            (folder, 0o755), (self.home, 0o755), (self.cache, 0o755), (self.temporary, 0o1777),
            (self.attackers, 0o755),
        )  # fmt: skip
        for each, mode in folders:
            each.mkdir(exist_ok=True)
            each.chmod(mode)
        evil_file = self.attackers / self.name
        evil_file.write_bytes(planted)
        evil_file.chmod(0o644)
        if IS_ROOT:
            for each in (self.attackers, evil_file):
                os.chown(each, NOBODY, NOBODY)

    def attack(self, script: str) -> None:
        """Run lines of shell as the other user. Any of them may fail."""
        folders = {
            "FALLBACK": self.fallback, "USUAL": self.usual, "CACHE": self.cache, "HOME": self.home,
            "MINE": self.attackers, "IN": self.inside, "NAME": self.name,
        }  # fmt: skip
        given = {name: str(value) for name, value in folders.items()}
        script = f'umask 0; plant() {{ mkdir -p "$1"; cp "$MINE/$NAME" "$1"; }}\n{script}'
        who: dict[str, Any] = {}
        if IS_ROOT:
            who = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        subprocess.run(
            ["sh", "-c", script], env=given | {"PATH": os.environ["PATH"]}, cwd="/", check=False,
            capture_output=True, timeout=30, **who,
        )  # fmt: skip

    def open(self, *folders: Path) -> None:
        """The victim leaves folders open to all, as with umask 0."""
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)

    def close(self) -> None:
        """The victim's folders are his alone again; the files in them are as they were."""
        for folder, _, _ in os.walk(self.usual):
            Path(folder).chmod(0o700)


# Lines of the attacker that put the file into a folder.
EVERYWHERE = "for R in $FALLBACK $USUAL $CACHE; do plant $R/$IN; plant $R; done"


def _before_in_the_temporary_folder(scene: Scene) -> None:
    """Nothing can be kept at home."""
    scene.cache.rmdir()
    scene.cache.touch()
    scene.attack(f"{EVERYWHERE}; chmod -R 777 $FALLBACK")


def _shared_cache(scene: Scene) -> None:
    scene.open(scene.cache)
    scene.attack("plant $USUAL/$IN; chmod -R 700 $USUAL; chmod -R a+rwX $USUAL")


def _cache_of_a_group(scene: Scene) -> None:
    scene.cache.chmod(0o770)
    if IS_ROOT:
        os.chown(scene.cache, 0, NOBODY)
    scene.attack("plant $USUAL/$IN; chmod -R 700 $USUAL")


def _shared_home(scene: Scene) -> None:
    """The parent is moved away, and another takes its place."""
    scene.open(scene.home)
    scene.attack("mv $CACHE $HOME/old; plant $USUAL/$IN; chmod -R 700 $CACHE")


def _link_at(level: str) -> Callable[[Scene], None]:
    """A link at a level, to the attacker's folders."""

    def attack(scene: Scene) -> None:
        target = {"trainplan": "$USUAL", "kernels": "$USUAL/kernels", "hash": "$USUAL/$IN"}[level]
        rest = {"trainplan": "/$IN", "kernels": "/${IN##*/}", "hash": ""}[level]
        parent = {"trainplan": scene.cache, "kernels": scene.usual}
        scene.open(parent.get(level, scene.usual / "kernels"))
        scene.attack(
            f'plant "$MINE/evil{rest}"; chmod -R 700 $MINE/evil; ln -s $MINE/evil {target}'
        )
        scene.close()
        scene.cache.chmod(0o755)

    return attack


def _link_on_the_way(scene: Scene) -> None:
    """The cache is a link to a link that lies where the attacker writes, and leads to a place that
    nobody else can write to, for now."""
    scene.cache.rmdir()
    scene.cache.symlink_to(scene.attackers / "way")
    scene.attack("plant $MINE/a/trainplan/$IN; chmod -R 700 $MINE/a; ln -s $MINE/a $MINE/way")


def _file_in(mode: int) -> Callable[[Scene], None]:
    """A file that came in while the victim's folder was open."""

    def attack(scene: Scene) -> None:
        scene.open(scene.usual / scene.inside)
        scene.attack(f"cp $MINE/$NAME $USUAL/$IN/; chmod {mode:o} $USUAL/$IN/$NAME")
        scene.close()

    return attack


def _link_to_a_file(scene: Scene) -> None:
    scene.open(scene.usual / scene.inside)
    scene.attack("ln -s $MINE/$NAME $USUAL/$IN/$NAME")
    scene.close()


def _hard_link(scene: Scene) -> None:
    """The victim's own file, which others once could write to, under a second name."""
    (scene.usual / scene.inside).mkdir(parents=True)
    file = scene.cache / "careless"
    file.write_bytes(scene.planted)
    file.chmod(0o600)
    (scene.usual / scene.inside / scene.name).hardlink_to(file)
    scene.close()


def _pipe(scene: Scene) -> None:
    """Whoever reads it waits for ever."""
    scene.open(scene.usual / scene.inside)
    scene.attack("mkfifo $USUAL/$IN/$NAME")
    scene.close()


ATTACKS: dict[str, Callable[[Scene], None]] = {
    "before, as /tmp/trainplan-UID": _before_in_the_temporary_folder,
    "a cache that all can write to": _shared_cache,
    "a link for trainplan": _link_at("trainplan"),
    "a link for kernels": _link_at("kernels"),
    "a link for the last folder": _link_at("hash"),
    "a file with a second name": _hard_link,
    "a pipe": _pipe,
    "a file that others can write to": _file_in(0o666),
    "a link to a file": _link_to_a_file,
}
if IS_ROOT:  # who is nobody else owns what he plants
    ATTACKS |= {
        "a file of the other user": _file_in(0o600),
        "a cache of a group": _cache_of_a_group,
        "a swapped parent": _shared_home,
        "a link on the way": _link_on_the_way,
    }


@pytest.fixture
def scene(planted: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Where others may look, as they may not into the folders of pytest."""
    with TemporaryDirectory(prefix="planting-") as folder:
        found = Scene(Path(folder), planted)
        for name in (CACHE_VARIABLE, "XDG_CACHE_HOME"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(found.home))
        monkeypatch.setenv("TMPDIR", str(found.temporary))
        monkeypatch.setattr(_private_folder.tempfile, "tempdir", str(found.temporary))
        monkeypatch.setattr(_private_folder, "refused", [])
        yield found


def loaded(scene: Scene) -> bytes | None:
    """What a process of the victim that starts now would load by the file's name."""
    _machine_code.cache_folder.cache_clear()
    try:
        found = _machine_code.read_code(scene.name)
    finally:
        _machine_code.cache_folder.cache_clear()
    return found[1] if found else None


def test_the_file_that_is_planted_would_be_loaded(scene: Scene) -> None:
    """Where the victim has put it there himself; so what follows can fail."""
    folder = scene.usual / scene.inside
    folder.mkdir(parents=True, mode=0o700)
    (folder / scene.name).write_bytes(scene.planted)
    assert loaded(scene) is not None


@pytest.mark.parametrize("kind", ATTACKS)
def test_nothing_planted_is_loaded(kind: str, scene: Scene) -> None:
    ATTACKS[kind](scene)
    places = [root / scene.inside / scene.name for root in (scene.usual, scene.fallback)]
    assert any(map(os.path.lexists, places)), "the attack put nothing anywhere"
    assert loaded(scene) is None


def test_a_folder_that_is_swapped_after_it_was_checked(scene: Scene) -> None:
    """The file is opened in the folder that was opened and looked at, whatever has its name now."""
    _machine_code.cache_folder.cache_clear()
    checked = _machine_code.cache_folder()
    checked.rename(checked.with_name("away"))
    evil = scene.attackers / "evil"
    scene.attack("plant $MINE/evil; chmod 777 $MINE/evil")
    checked.symlink_to(evil)
    assert (evil / scene.name).exists()
    assert _machine_code.read_code(scene.name) is None
    checked.unlink()
    evil.rename(checked)
    assert (checked / scene.name).exists()
    assert _machine_code.read_code(scene.name) is None
    _machine_code.cache_folder.cache_clear()


def run() -> list[str]:
    """A process of the victim: its figures, its cache, names of what it compiled."""
    found = subprocess.run(
        [sys.executable, "-c", RUN], check=True, capture_output=True, text=True, timeout=300
    )
    return found.stdout.strip().split("; ")


def test_a_run_between_attacks_and_one_after_them(scene: Scene) -> None:
    """The attacker plants wherever he can, before the victim's first run and after it."""
    scene.attack(f"{EVERYWHERE}; chmod -R 777 $FALLBACK" if IS_ROOT else "plant $FALLBACK/$IN")
    figures, folder, scene.name = run()
    assert (figures, folder) == (RIGHT, str(scene.usual / scene.inside))
    (scene.attackers / scene.name).write_bytes(scene.planted)
    if IS_ROOT:
        scene.attack(f"rm -rf $USUAL; mv $USUAL $CACHE/old; ln -sf $MINE $USUAL; {EVERYWHERE}")
        assert run() == [RIGHT, folder]
    # It would have run.
    (scene.usual / scene.inside / scene.name).write_bytes(scene.planted)
    assert run()[0] == WRONG
