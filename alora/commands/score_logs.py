"""``alora score artifact=DIR data=LOG output=FILE.parquet [cluster=ray]``: the verdicts on a log, shard by shard.

A shard is scored by itself, here or in an actor of a Ray cluster, so where it was scored does not show in its bytes.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alora.api import Battery, load, open_artifact
from alora.bundle.light import read_bundle
from alora.commands.output import note, table
from alora.config.environment import debugging
from alora.config.schema import Recipe
from alora.config.secrets import in_the_clear, redacted
from alora.data.conversation import LabelledConversation, Rejected, stream_conversations
from alora.errors import AloraError, CheckFailed, MissingDependency, RunError, first_line
from alora.logs.rows import survey, time_of
from alora.logs.verdicts import Refused, Scored, VerdictFolder
from alora.version import __version__

if TYPE_CHECKING:
    from alora.remote import Client, GuardClient

_TRIES = 5  # of a shard whose actor died


def score_logs(recipe: Recipe, source: str, output: Path) -> int:
    """Rows to Parquet; 1 where none could be scored. A row that is wrong costs itself alone, unless ``strict``."""
    verdicts = _guard_verdicts(recipe) if _by_guard(recipe) else _bundle_verdicts(recipe)
    found = survey(source, recipe.data)
    if recipe.strict:
        found.wrong.raise_if_any(source)
    job = {
        "rows": found.count,
        "rows_digest": found.digest,
        "time": recipe.data.columns.time,
        **verdicts,
        "engine": redacted(recipe.engine),
        "shard_rows": recipe.logs.shard_rows,
        "alora": __version__,
    }
    folder = VerdictFolder(output, job)
    done = folder.done
    if done is not None:
        note(f"{output} is complete already")
    else:
        with folder:
            _write_shards(recipe, source, folder)
            done = folder.finish()
    table(
        ("policy", "rows", "violated"), [(policy, done["scored"], count) for policy, count in done["flagged"].items()]
    )
    if done["rejected"]:
        note(f"{done['rejected']} of {found.count} rows have no verdict; {folder.rejected} says why of each")
    return int(done["scored"] == 0)


def _write_shards(recipe: Recipe, source: str, folder: VerdictFolder) -> None:
    from tqdm.auto import tqdm

    missing = list(folder.missing())
    if not missing:
        return
    before = folder.job["rows"] - sum(map(folder.rows_of, missing))
    with tqdm(total=folder.job["rows"], initial=before, desc="scoring", unit="row", mininterval=1) as bar:
        if recipe.cluster is not None:
            for shard in _on_ray(recipe, source, folder, missing):
                bar.update(folder.rows_of(shard))
            return
        with closing(Shards(recipe, source, folder)) as shards:
            for shard in missing:
                shards.write(shard, bar.update)


class Shards:
    """What scores and writes shards of one log; it reads on from shard to shard."""

    def __init__(self, recipe: Recipe, source: str, folder: VerdictFolder) -> None:
        self._recipe, self._source, self._folder = recipe, source, folder
        self._scorer, self._next = scorer_of(recipe), 0
        self._rows = self._read()

    def _read(self) -> Iterator[tuple[int, Any]]:
        return enumerate(stream_conversations(self._source, self._recipe.data))

    def write(self, shard: int, tick: Callable[[int], object]) -> None:
        """Score one shard; ``tick`` hears of rows that are done."""
        if shard < self._next:
            self._rows, self._next = self._read(), 0
        size = self._recipe.logs.shard_rows
        deque(islice(self._rows, (shard - self._next) * size), maxlen=0)
        self._next = shard + 1
        self._folder.write(shard, _answers(self._scorer, islice(self._rows, size), self._recipe, tick))

    def close(self) -> None:
        """Free the scorer."""
        self._scorer.close()


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


def _on_ray(recipe: Recipe, source: str, folder: VerdictFolder, missing: Sequence[int]) -> Iterator[int]:
    """Each shard when it is written, by actors of the cluster at ``$RAY_ADDRESS``, or of one that is started here."""
    try:
        import ray
        import ray.data
        import ray.exceptions
    except ImportError as error:
        raise MissingDependency(
            f"cluster=ray needs Ray Data ({first_line(error)}); pip install 'alora-toolkit[ray]'"
        ) from error
    if not ray.is_initialized():
        ray.init(log_to_driver=debugging(), logging_level=logging.WARNING, include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.DEBUG if debugging() else logging.CRITICAL)
    cluster = ray.cluster_resources()
    computes = not recipe.engine.startswith("http") and recipe.base.device != "cpu"
    gpus = int(cluster.get("GPU", 0)) if computes else 0
    actors = recipe.logs.actors or gpus or int(cluster["CPU"])
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
        message = f"Ray: {first_line(error)}; the same command goes on behind the shards that are there"
        raise RunError(message) from error


def _answers(
    scorer: Battery | Client | GuardClient,
    rows: Iterable[tuple[int, Any]],
    recipe: Recipe,
    tick: Callable[[int], object],
) -> Iterator[Scored | Refused]:
    """What comes of each row, in any order; nothing of another shard is read."""
    asked: deque[tuple[int, Any, LabelledConversation]] = deque()
    refused: list[Refused] = []

    def conversations() -> Iterator[LabelledConversation]:
        for number, (value, row) in rows:
            if isinstance(row, Rejected):
                refused.append(Refused(number, row.where, [str(finding) for finding in row.findings]))
            else:
                asked.append((number, value, row))
                yield row

    for answer in scorer.score_many(conversations(), errors="return"):
        number, value, row = asked.popleft()
        tick(1)
        if isinstance(answer, AloraError):
            if recipe.strict:
                raise answer
            yield Refused(number, row.where, [str(answer)])
        else:
            time = time_of(value, recipe.data)
            cut = answer.truncation is not None
            yield Scored(number, answer.conversation, time, answer.prefix_tokens, cut, answer.verdicts)
    tick(len(refused))
    yield from refused


def _bundle_verdicts(recipe: Recipe) -> dict[str, Any]:
    """What the verdicts hang on, and what later ones are compared with."""
    bundles, base = open_artifact(artifact_of(recipe), recipe.base, recipe.policies, read_bundle)
    policies = {}
    for bundle in bundles:
        point = bundle.manifest.operating_point
        known = {"adapter": bundle.manifest.adapter_digest, "labels": list(bundle.policy.labels)}
        policies[bundle.policy.id] = known | asdict(point.calibration) | {"histogram": point.histogram}
    return {"policies": policies, "base": bundles[0].manifest.base.fingerprint.as_dict() | {"dtype": base.dtype}}


def _by_guard(recipe: Recipe) -> bool:
    """Whether a guard is asked: it knows its bundles itself."""
    return recipe.engine.startswith("http") and not artifact_of(recipe)


def _guard_verdicts(recipe: Recipe) -> dict[str, Any]:
    from alora.remote import GuardClient

    with GuardClient(recipe.engine) as guard:
        asked = guard.asked
    return {
        "policies": {
            one.policy: {"adapter": one.digest, "labels": list(one.labels), "threshold": one.threshold} for one in asked
        }
    }


def artifact_of(recipe: Recipe) -> list[str]:
    return [*([recipe.artifact] if recipe.artifact else []), *recipe.bundles]


def scorer_of(recipe: Recipe) -> Battery | Client | GuardClient:
    """What computes the verdicts: the engine that was asked for."""
    if recipe.engine.startswith("http"):
        from alora.remote import Client, GuardClient

        if remark := in_the_clear(recipe.engine):
            note(remark)
        if _by_guard(recipe):
            return GuardClient(recipe.engine)
        return Client(recipe.engine, artifact_of(recipe), base=recipe.base, policies=recipe.policies)
    here = "vllm" if recipe.engine == "vllm" else "packed"
    return load(artifact_of(recipe), base=recipe.base, scorer=here, policies=recipe.policies)
