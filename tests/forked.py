"""``alora`` in a process of its own, forked off one that has imported torch: to be killed for real, started in no time.

All of them share one hash seed, so whatever must not depend on it is held to a fresh process.
"""

import ctypes
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

AUDIT_LOG = "AUDIT_LOG"  # an environment variable: the file that takes every address that a socket is connected to
_PATIENCE = 600  # seconds
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, from glibc's malloc.h
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["alora.commands.train", "alora.commands.score", "transformers.trainer", "transformers.models.qwen3.modeling_qwen3"]
)


class Forked:
    """A command that runs, with what tests use of ``subprocess.Popen``.

    It cannot write files above ``largest_file`` bytes.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], largest_file: int | None = None
    ) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="alora-forked-")
        self._streams = [str(Path(self._place.name, name)) for name in ("output", "errors")]
        what = (list(arguments), dict(environment), str(Path.cwd()), largest_file, *self._streams)
        self._process = _SERVER.Process(target=_run, args=what)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def communicate(self) -> tuple[str, str]:
        """Wait for the end; standard output and standard error."""
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            raise TimeoutError(f"still running after {_PATIENCE} s: {self._process}")
        output, errors = (Path(file).read_text() if Path(file).exists() else "" for file in self._streams)
        self._place.cleanup()
        return output, errors


def start_forked(*arguments: str, cache: Path) -> Forked:
    """``tests.toy_recipe.start_alora`` without the seconds that imports take."""
    return Forked(arguments, os.environ | {"ALORA_CACHE": str(cache)})


def run_forked(*arguments: str, cache: Path) -> tuple[int | None, str, str]:
    """Exit code, standard output and standard error of one command."""
    process = start_forked(*arguments, cache=cache)
    output, errors = process.communicate()
    return process.returncode, output, errors


def call_forked(function: Callable[..., Any], *arguments: Any) -> Any:
    """What ``function`` returns in a process of its own, whose allocator gives freed memory back at once."""
    ours, theirs = _SERVER.Pipe(duplex=False)
    process = _SERVER.Process(target=_answer, args=(theirs, function, arguments))
    process.start()
    theirs.close()
    found = ours.recv()
    process.join(_PATIENCE)
    return found


def _answer(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
        ctypes.CDLL(None).mallopt(option, 65536)
    pipe.send(function(*arguments))


def kill_when(process: Forked, reached: Callable[[], bool]) -> None:
    """SIGKILL as soon as ``reached``, if the command runs as long."""
    deadline = time.monotonic() + _PATIENCE
    while process.poll() is None and not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.communicate()


def write_down_connections(file: str) -> None:
    """From now on, every address that a socket of this process is connected to, into ``file``."""
    log = Path(file).open("a")  # noqa: SIM115 open until the process ends, or is killed

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect":
            log.write(f"{arguments[1]!r}\n")
            log.flush()

    sys.addaudithook(heard)


def _run(
    arguments: list[str], environment: dict[str, str], folder: str, largest_file: int | None, output: str, errors: str
) -> None:
    from alora.cli import main

    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    for path, stream in ((output, 1), (errors, 2)):
        written = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(written, stream)
        os.close(written)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if AUDIT_LOG in environment:
        write_down_connections(environment[AUDIT_LOG])
    sys.argv = ["alora", *arguments]
    sys.exit(main())
