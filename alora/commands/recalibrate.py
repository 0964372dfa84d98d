"""``alora recalibrate artifact=BUNDLE data.validation=FILE``: its threshold for another precision, base or engine.

The bundle is made again on the base at hand: logits, temperature, threshold with interval and golden rows are this
base's, and the manifest says so. It is fitted for what the old one was fitted for, unless the command says another
target. On another quantization KV identity is certified again first; a parity run compares the golden rows' answers.
The new bundle takes the old one's place in one step, or goes to ``output``.
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from alora.base.load import LoadedBase, load_base
from alora.base.location import base_location
from alora.bundle.artifact import Artifact, chosen, find_artifact, read_bundles, saved_run
from alora.bundle.battery import require_all_listed, write_battery
from alora.bundle.manifest import MoveRecord
from alora.bundle.move import is_move, moved, recertify, rewrite_bundle
from alora.bundle.read import Bundle, answers_of, check_bundles, load_bundle
from alora.bundle.run_rows import known_of_run, note_leak, read_for, read_noted, settings_as_trained, trained_rows
from alora.bundle.write import require_replaceable
from alora.client.engine import Engine
from alora.commands.output import say, say_json, table
from alora.config.schema import BaseSettings, Recipe
from alora.data.conversation import LabelledConversation
from alora.data.sources import Source, each, named
from alora.errors import ConfigError, DataError, LeftOut
from alora.evaluation.calibration import fit_operating_point, positive_probability, refit_settings
from alora.evaluation.predict import Predictions, out_of_fold_predictions
from alora.evaluation.tables import describe_operating_point
from alora.training.layout import POLICIES, TRAINING
from alora.training.standings import read_out_of_fold, require_trained
from alora.verdict import OperatingPoint


@dataclass(frozen=True)
class Refit:
    """One bundle's operating point before and after, with what each does on the validation rows."""

    bundle: Bundle
    point: OperatingPoint
    predictions: Predictions
    moved: MoveRecord | None

    def rates(self, point: OperatingPoint) -> tuple[float, float]:
        """Recall and false positive rate of ``point`` on the rows."""
        fired_N = positive_probability(self.predictions.logits_NL, point.temperature, point.bias) >= point.threshold
        positive_N = self.predictions.positive_N
        return float(fired_N[positive_N].mean()), float(fired_N[~positive_N].mean())


def run(recipe: Recipe) -> int:
    """Fit temperature and threshold again, and write the bundles that hold them."""
    artifact = find_artifact(str(recipe.artifact))
    everyone, settings = read_bundles([str(artifact.folder)], recipe.base, (), load_bundle)
    bundles = list(chosen({bundle.policy.id: bundle for bundle in everyone}, recipe.policies, artifact).values())
    if artifact.several and recipe.output is not None:
        require_all_listed(recipe.output, {bundle.folder.name for bundle in bundles})
    if recipe.output is not None and len(bundles) < len(everyone):
        raise ConfigError("output= is for the whole battery; leave policies= out, or recalibrate where it lies")
    for bundle in bundles:  # all of them before the first is written
        require_replaceable(_place(recipe, artifact, bundle).absolute(), bundle.policy.id)
    rows, source = _validation_rows(
        recipe, artifact, read_for(everyone, bundles), {bundle.policy.id for bundle in bundles}
    )
    base = load_base(settings)
    if recipe.output is None and len(bundles) < len(everyone):
        _require_same_base(everyone, base)
    check_bundles([bundle for bundle in bundles if not is_move(bundle, base)], base)
    certificates = [recertify(bundle, base, recipe.identity) for bundle in bundles]
    refits = _refit(recipe, bundles, base, settings, rows, artifact)
    made = [
        rewrite_bundle(
            refit.bundle,
            _place(recipe, artifact, refit.bundle),
            base=base,
            certificate=certificate,
            operating_point=refit.point,
            moved=refit.moved,
            validation=refit.predictions.label_counts,
        )
        for refit, certificate in zip(refits, certificates, strict=True)
    ]
    if artifact.several and recipe.output is not None:
        write_battery(recipe.output, made)
    _show(recipe, refits, made, source)
    return 0


def _require_same_base(everyone: Sequence[Bundle], base: LoadedBase) -> None:
    """A part of a battery may not move to another base, for its bundles are served behind one prefix."""
    differing = {name for bundle in everyone for name in bundle.manifest.base.fingerprint.differences(base.fingerprint)}
    if "quantization" in differing:
        raise ConfigError(
            f"base.quantization={base.fingerprint.quantization} for some policies would leave the battery on two "
            "bases; leave policies= out, with output= to keep the old one"
        )


def _validation_rows(
    recipe: Recipe, artifact: Artifact, bundles: Sequence[Bundle], wanted: Collection[str]
) -> tuple[list[LabelledConversation], str]:
    """``data.validation``; else the rows that the artifact's own run held out. Those of ``wanted`` must be usable."""
    data = settings_as_trained(recipe, artifact)
    if data.validation is None and artifact.run is not None:
        rows, unread = _held_out(recipe, artifact, data.train)
    elif data.validation is None:
        unknown = data.train and f"; which rows of data.train={named(data.train)} it was trained on, only its run knows"
        raise ConfigError(f"there are no rows to fit a threshold to; add data.validation=FILE.jsonl{unknown or ''}")
    else:
        rows, unread = read_noted(data.validation, data, [bundle.policy for bundle in bundles], "validation")
        known = known_of_run(artifact, rows, calibrated=False)
        note_leak(known, rows, wanted, "a threshold that is fitted to them is too sure of itself")
    for name in sorted(unread.keys() & wanted):
        raise unread[name]
    files = ", ".join(Path(one).name for one in each(data.validation or data.train))
    return rows, files if data.validation is not None else f"rows that the run held out of {files}"


def _held_out(recipe: Recipe, artifact: Artifact, source: Source) -> tuple[list[LabelledConversation], LeftOut]:
    """What the artifact's run held out of its training rows, and the policies whose rows cannot be read."""
    remedy = "give rows that it did not train on as data.validation=FILE.jsonl"
    run = saved_run(artifact)
    if run is not None and source != run.data.train:
        raise ConfigError(f"data.train={named(source)} is not what the run {artifact.run} held rows out of; {remedy}")
    try:
        train, held, unread = trained_rows(artifact)
    except ConfigError as error:
        raise ConfigError(f"{error}; {remedy}") from error
    return [*held, *(row for row in train if row.folds)], unread


def _out_of_fold(
    recipe: Recipe, artifact: Artifact, bundle: Bundle, base: LoadedBase, rows: Sequence[LabelledConversation]
) -> Predictions:
    """What the run's folds answered to ``rows``, from which the adapter itself has learnt."""
    run, asked = saved_run(artifact), (recipe.scorer, base.dtype)
    if run is None or artifact.run is None or is_move(bundle, base) or asked != ("packed", bundle.manifest.base.dtype):
        raise ConfigError(
            f"the adapter of {bundle.policy.id} has learnt from all rows of its run, whose folds answered in "
            f"{bundle.manifest.base.dtype}, scorer packed; give other labelled rows as data.validation=FILE.jsonl"
        )
    record = artifact.run / POLICIES / bundle.policy.id / TRAINING
    require_trained(record, bundle.policy.id, bundle.weights.digest)
    return out_of_fold_predictions(bundle.policy, rows, read_out_of_fold(record))


def _refit(
    recipe: Recipe,
    bundles: Sequence[Bundle],
    base: LoadedBase,
    settings: BaseSettings,
    rows: Sequence[LabelledConversation],
    artifact: Artifact,
) -> list[Refit]:
    folded = {name for row in rows for name in row.folds}
    of_folds = [row for row in rows if row.folds]
    rows = [row for row in rows if not row.folds]
    engine = Engine.of(bundles, base, base_location(settings)) if recipe.scorer == "vllm" else None
    answers, found = answers_of(bundles, base, rows, recipe.scoring.max_tokens, engine), []
    for bundle, predictions in zip(bundles, answers, strict=True):
        if (name := bundle.policy.id) in folded:
            own = [row for row in of_folds if name in row.folds]
            predictions = _out_of_fold(recipe, artifact, bundle, base, own)
        if len(predictions.label_ids_N) == 0:
            raise DataError(
                f"no validation row is labelled for policy {bundle.policy.id!r}; add some, or name policies="
            )
        evaluation = refit_settings(bundle.manifest.operating_point, recipe.evaluation, recipe.said)
        point = fit_operating_point(predictions.logits_NL, predictions.label_ids_N, evaluation)
        point = replace(point, dtype=base.dtype, engine=recipe.scorer)
        found.append(Refit(bundle, point, predictions, moved(bundle, base, point)))
    return found


def _place(recipe: Recipe, artifact: Artifact, bundle: Bundle) -> Path:
    if recipe.output is None:
        return bundle.folder
    return Path(recipe.output) / bundle.folder.name if artifact.several else Path(recipe.output)


def _show(recipe: Recipe, refits: Sequence[Refit], made: Sequence[Bundle], source: str) -> None:
    rows = []
    for refit, bundle in zip(refits, made, strict=True):
        packed = bundle.manifest.base.fingerprint.quantization
        before, after = refit.bundle.manifest.operating_point, refit.point
        was, now = refit.rates(before), refit.rates(after)
        rows.append(
            {
                "policy": refit.bundle.policy.id,
                "fitted in": f"{after.dtype}{'' if packed == 'none' else f' on {packed}'}, scorer {after.engine}",
                "threshold": after.threshold,
                "low": after.threshold_low,
                "high": after.threshold_high,
                "temperature": after.temperature,
                "recall": now[0],
                "FPR": now[1],
                "old threshold": before.threshold,
                "old recall": was[0],
                "old FPR": was[1],
            }
        )
        if refit.moved is not None and refit.moved is not refit.bundle.manifest.moved:
            rows[-1]["parity"] = asdict(refit.moved)
    if recipe.json:
        say_json({"rows": source, "bundles": [str(bundle.folder) for bundle in made], "policies": rows})
        return
    runs = [(row["policy"], row.pop("parity")) for row in rows if "parity" in row]
    table(tuple(rows[0]), [list(row.values()) for row in rows])
    for policy, found in runs:
        far = found["largest_difference"]
        say(
            f"{policy}: parity with the base in {found['quantization']}: {found['same_verdict']} of {found['rows']} "
            "golden rows keep their verdict, log-probabilities differ by up to "
            f"{'what is not a number' if far is None else f'{far:.2g}'}"
        )
    say(f"rows: {source}; what the old threshold does is on the same rows")
    for bundle in made:
        say(f"{bundle.policy.id}: {describe_operating_point(bundle.manifest.operating_point)}\n  {bundle.folder}")
