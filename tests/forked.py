"""``alora`` in a process of its own, forked off one that has imported torch: to be killed for real, started in no time.

All of them share one hash seed, so whatever must not depend on it is held to a fresh process.
"""

import multiprocessing
import os
import resource
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_PATIENCE = 600  # seconds
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
    sys.argv = ["alora", *arguments]
    sys.exit(main())
