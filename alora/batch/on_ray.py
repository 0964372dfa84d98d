"""``cluster=ray``: the shards of a log, scored by the actors of a Ray cluster."""

import logging
import os
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import ray.data
import ray.exceptions

from alora.batch.shards import Shards
from alora.batch.verdict_folder import VerdictFolder
from alora.config.environment import debugging
from alora.config.schema import Recipe
from alora.errors import AloraError, CheckFailed, RunError, first_line

_TRIES = 5  # of a shard whose actor died


class _Actor:
    """:class:`Shards` in a process of a Ray cluster, which Ray Data starts again, with its shard, where it dies."""

    def __init__(self, recipe: Recipe, source: str, output: Path, job: dict[str, Any], here: str) -> None:
        self._made_of, self._here, self._shards = (recipe, source, output, job), here, None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Of one shard; what is wrong is an answer, too, since Ray Data would wrap it into an error of its own."""
        try:
            if self._shards is None:
                os.chdir(self._here)
                recipe, source, output, job = self._made_of
                self._shards = Shards(recipe, source, VerdictFolder(output, job))
            self._shards.write(int(batch["item"][0]), lambda _: None)
        except AloraError as error:
            return batch | {"wrong": [str(error)], "exit_code": [error.exit_code]}
        return batch | {"wrong": [""], "exit_code": [0]}


def _cluster() -> Mapping[str, float]:
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    try:
        if not ray.is_initialized():
            if host and port.isdecimal() and "://" not in address:  # Ray itself tries for minutes
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            ray.init(log_to_driver=debugging(), logging_level=logging.WARNING, include_dashboard=False)
        return ray.cluster_resources()
    except (OSError, ValueError, OverflowError, RuntimeError, ray.exceptions.RayError) as error:
        remedy = f"RAY_ADDRESS is {address}; name one that runs, or unset it" if address else "ray start says more"
        raise RunError(f"no Ray cluster answers ({first_line(error)}); {remedy}") from error


def on_ray(recipe: Recipe, source: str, folder: VerdictFolder, missing: Sequence[int]) -> Iterator[int]:
    """Each shard when it is written, by actors of the cluster at ``$RAY_ADDRESS``, or of one that is started here."""
    cluster = _cluster()
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.DEBUG if debugging() else logging.CRITICAL)
    computes = not recipe.scorer.startswith("http") and recipe.base.device != "cpu"
    gpus = int(cluster.get("GPU", 0)) if computes else 0
    actors = recipe.logs.actors or gpus or int(cluster.get("CPU", 0))
    if not actors:
        raise RunError("the Ray cluster has no CPU now; logs.actors=N waits until N actors have one each")
    # Ray has no other name for the number of tries yet.
    warnings.filterwarnings("ignore", "`ray_remote_args` is deprecated")
    made_of = (recipe, source, folder.output, folder.job, str(Path.cwd()))
    try:
        written = ray.data.from_items(list(missing), override_num_blocks=len(missing)).map_batches(
            _Actor, fn_constructor_args=made_of, batch_size=1, num_gpus=int(gpus > 0), max_task_retries=_TRIES,
            compute=ray.data.ActorPoolStrategy(size=min(actors, len(missing))),
        )  # fmt: skip
        for row in written.iter_rows():
            if row["wrong"]:
                raise (CheckFailed if row["exit_code"] == CheckFailed.exit_code else RunError)(row["wrong"])
            yield int(row["item"])
    except ray.exceptions.RayError as error:
        raise RunError(f"Ray: {first_line(error)}") from error
