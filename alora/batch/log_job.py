"""``alora score artifact=DIR data=LOG output=FILE.parquet [cluster=ray]``: the verdicts on a log, shard by shard.

A shard is scored by itself, here or in an actor of a Ray cluster, so where it was scored does not show in its bytes.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from alora.batch.log_rows import reading, survey
from alora.batch.shards import Shards, by_guard, guard_scorer
from alora.batch.verdict_folder import VerdictFolder
from alora.bundle.artifact import named_artifacts, open_artifact
from alora.bundle.light import read_bundle
from alora.bundle.run_rows import note_reading
from alora.config.schema import Recipe
from alora.config.secrets import redacted
from alora.errors import AloraError, MissingDependency, first_line
from alora.text import note
from alora.version import __version__


def score_log(recipe: Recipe, source: str, output: Path) -> Mapping[str, Any]:
    """Rows to Parquet: how many were ``scored`` and ``rejected``, and how many each policy ``flagged``. A row that is
    wrong costs itself alone, unless ``strict``."""
    verdicts = _guard_verdicts(recipe) if by_guard(recipe) else _bundle_verdicts(recipe)
    found = survey(source, recipe.data)
    if recipe.strict:
        found.wrong.raise_if_any(source)
    note_reading(found.wrong.notes)
    job = {
        "rows": found.count,
        "rows_digest": found.digest,
        "time": recipe.data.columns.time,
        "reading": reading(recipe.data),
        **verdicts,
        "engine": redacted(recipe.scorer),
        "shard_rows": recipe.logs.shard_rows,
        "max_tokens": recipe.scoring.max_tokens,
        "alora": __version__,
    }
    folder = VerdictFolder(output, job)
    done = folder.read_result()
    if done is not None:
        note(f"{output} is complete already")
    else:
        with folder:
            try:
                _write_shards(recipe, source, folder)
            except AloraError:
                note(
                    f"the shards that are complete stay in {folder.folder}; the same command goes on behind them, as "
                    "long as the rows are the same"
                )
                raise
            done = folder.finish()
    if done["rejected"]:
        note(f"{done['rejected']} of {found.count} rows have no verdict; {folder.rejected} says why of each")
    return done


def _write_shards(recipe: Recipe, source: str, folder: VerdictFolder) -> None:
    if not (missing := list(folder.missing())):
        return
    before = folder.job["rows"] - sum(map(folder.rows_of, missing))
    with tqdm(total=folder.job["rows"], initial=before, desc="scoring", unit="row", mininterval=1) as bar:
        if recipe.cluster is not None:
            try:
                from alora.batch.on_ray import on_ray  # optional
            except ImportError as error:
                raise MissingDependency(
                    f"cluster=ray needs Ray Data ({first_line(error)}); pip install 'alora-toolkit[ray]'"
                ) from error
            for shard in on_ray(recipe, source, folder, missing):
                bar.update(folder.rows_of(shard))
            return
        with closing(Shards(recipe, source, folder)) as shards:
            for shard in missing:
                shards.write(shard, bar.update)


def _bundle_verdicts(recipe: Recipe) -> dict[str, Any]:
    """What the verdicts hang on, and what later ones are compared with."""
    bundles, base = open_artifact(named_artifacts(recipe), recipe.base, recipe.policies, read_bundle)
    policies = {}
    for bundle in bundles:
        point, content = bundle.manifest.operating_point, bundle.manifest.as_dict()
        # One adapter answers otherwise on another prompt: a longer prefix, say.
        known = {key: content[key] for key in ("prompt", "suffix")}
        known |= {"adapter": bundle.manifest.adapter_digest, "labels": list(bundle.policy.labels)}
        known |= {name: getattr(point, name) for name in ("temperature", "threshold", "bias", "histogram")}
        policies[bundle.policy.id] = known
    return {"policies": policies, "base": bundles[0].manifest.base.fingerprint.as_dict() | {"dtype": base.dtype}}


def _guard_verdicts(recipe: Recipe) -> dict[str, Any]:
    policies = {}
    with guard_scorer(recipe) as guard:
        for one in guard.asked:
            policies[one.policy] = {"adapter": one.digest, "labels": list(one.labels), "threshold": one.threshold}
    return {"policies": policies}
