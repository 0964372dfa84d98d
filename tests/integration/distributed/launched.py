"""Commands under a launcher, and nothing of them left when one is killed."""

import contextlib
import os
from pathlib import Path

import psutil

from tests.forked import Forked

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
# What `accelerate launch` does on a machine with GPUs; base.device=cpu keeps off those that are there.
ACCELERATE = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
              "--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0")  # fmt: skip
PATIENCE = 240  # seconds; a process that waits for one that is gone must not hold up the tests


def start(launcher: tuple[str, ...], *arguments: str, cache: Path | None = None) -> Forked:
    """Start ``arguments`` (``-m MODULE ...``) under ``launcher``."""
    return Forked([*launcher, *arguments], os.environ | ({"ALORA_CACHE": str(cache)} if cache else {}))


def kill(process: Forked) -> None:
    """SIGKILL to the launcher and all that it started; torchrun's workers have sessions of their own."""
    launcher = psutil.Process(process.pid)
    for one in [launcher, *launcher.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.communicate()


def finish(process: Forked) -> tuple[int | None, str, str]:
    """Exit code, standard output and standard error."""
    try:
        process.wait(PATIENCE)
    except TimeoutError:
        kill(process)
        raise
    output, errors = process.communicate()
    return process.returncode, output, errors
