"""``alora recalibrate artifact=BUNDLE data.validation=FILE``: its threshold for another precision, base or engine.

The bundle is made again on the base at hand: logits, temperature, threshold with interval and golden rows are this
base's, and the manifest says so. It is fitted for what the old one was fitted for, unless the command says another
target. On another quantization KV identity is proven again first, and a parity run says how the answers to the golden
rows change. The new bundle takes the old one's place in one step, or goes to ``output``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alora.bundle.artifact import Artifact, Kind, find_artifact
from alora.commands.artifacts import chosen, open_bundles, saved_run
from alora.commands.output import note, say, say_json, table
from alora.config.paths import POLICY_PLACE
from alora.config.schema import BaseSettings, EvaluationSettings, Recipe
from alora.data.conversation import LabelledConversation, each
from alora.data.splits import hold_out, merge_rows, read_policy_rows
from alora.errors import CheckFailed, ConfigError, DataError
from alora.evaluation.calibration import OperatingPoint, fit_operating_point, positive_probability
from alora.evaluation.predict import Predictions, predict
from alora.evaluation.report import describe_operating_point

if TYPE_CHECKING:
    from alora.base.load import LoadedBase
    from alora.bundle.manifest import MoveRecord
    from alora.bundle.read import Bundle
    from alora.identity.certificate import Certificate
    from alora.prompt.render import Question


@dataclass(frozen=True)
class Refit:
    """One bundle's operating point before and after, with what each does on the validation rows."""

    bundle: Bundle
    point: OperatingPoint
    predictions: Predictions
    moved: MoveRecord | None

    def rates(self, point: OperatingPoint) -> tuple[float, float]:
        """Recall and false positive rate of ``point`` on the rows."""
        fired_N = positive_probability(self.predictions.logits_NL, point.temperature) >= point.threshold
        positive_N = self.predictions.positive_N
        return float(fired_N[positive_N].mean()), float(fired_N[~positive_N].mean())


def run(recipe: Recipe) -> int:
    """Fit temperature and threshold again, and write the bundles that hold them."""
    from alora.base.load import load_base
    from alora.bundle.battery import BATTERY_FILE, battery_folders, write_battery

    artifact = find_artifact(str(recipe.artifact))
    everyone, settings = open_bundles(replace(recipe, policies=[]))
    bundles = chosen(everyone, recipe.policies, artifact.folder) if artifact.kind is Kind.BATTERY else everyone
    if artifact.kind is Kind.BATTERY and recipe.output is not None and (Path(recipe.output) / BATTERY_FILE).exists():
        battery_folders(recipe.output)  # refuses a list that is not ours, which would be replaced
    if recipe.output is not None and len(bundles) < len(everyone):
        raise ConfigError("output= is for the whole battery; leave policies= out, or recalibrate where it lies")
    rows, source = _validation_rows(recipe, artifact, everyone, {bundle.policy.id for bundle in bundles})
    base = load_base(settings)
    if artifact.kind is Kind.BATTERY and recipe.output is None and len(bundles) < len(everyone):
        _require_same_base(everyone, base)
    certificates = {bundle.policy.id: _certificate(recipe, bundle, base) for bundle in bundles}
    refits = _refit(recipe, bundles, base, settings, rows)
    made = []
    for refit in refits:
        bundle = refit.bundle
        place = _place(recipe, artifact, bundle)
        made.append(_write(refit, base, certificates[bundle.policy.id], place))
    if artifact.kind is Kind.BATTERY and recipe.output is not None:
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
    policies = [bundle.policy for bundle in bundles]
    run = saved_run(artifact)
    data = recipe.data if recipe.data.validation is not None or run is None else run.data
    source = data.validation or data.train
    if source is None:
        raise ConfigError("there are no rows to fit a threshold to; add data.validation=FILE.jsonl")
    files = ", ".join(Path(one).name for one in each(source))
    rows, unusable = read_policy_rows(source, data, policies)
    for name in sorted(unusable.keys() & wanted):
        raise unusable[name]
    rows = merge_rows(rows) if POLICY_PLACE in str(source) else rows
    if data.validation is not None:
        return rows, files
    return hold_out(rows, data.validation_share)[1], f"rows that the run held out of {files}"


def _refit(
    recipe: Recipe,
    bundles: Sequence[Bundle],
    base: LoadedBase,
    settings: BaseSettings,
    rows: Sequence[LabelledConversation],
) -> list[Refit]:
    from alora.base.limits import IN_ARTIFACT, require_room

    policies, suffixes = [bundle.policy for bundle in bundles], [bundle.suffix for bundle in bundles]
    renderer = bundles[0].renderer(base)
    require_room(base.model, renderer, rows, {bundle.policy.id: bundle.suffix for bundle in bundles}, IN_ARTIFACT)
    if recipe.engine == "vllm":
        answers = predict(_InVllm(bundles, base, settings), renderer, policies, suffixes, rows)
    elif recipe.engine == "transformers":
        from alora.prefix.scorer import Scorer

        with Scorer(base, [bundle.weights for bundle in bundles]) as scorer:
            answers = predict(scorer, renderer, policies, suffixes, rows)
    else:
        raise ConfigError(f"engine={recipe.engine}: recalibrate runs the engine itself; give transformers or vllm")
    found = []
    for bundle, predictions in zip(bundles, answers, strict=True):
        if len(predictions.label_ids_N) == 0:
            raise DataError(
                f"no validation row is labelled for policy {bundle.policy.id!r}; add some, or name policies="
            )
        evaluation = target_of(bundle.manifest.operating_point, recipe.evaluation)
        point = fit_operating_point(predictions.logits_NL, predictions.label_ids_N, evaluation)
        dtype = str(base.model.dtype).removeprefix("torch.")
        point = replace(point, dtype=dtype, engine=recipe.engine)
        found.append(Refit(bundle, point, predictions, _moved(bundle, base, point)))
    return found


def _moved(bundle: Bundle, base: LoadedBase, point: OperatingPoint) -> MoveRecord | None:
    """The parity run, where the base is quantized in another way; else what was found when the bundle was moved."""
    from alora.bundle.move import is_move, parity_run

    return parity_run(bundle, base, point) if is_move(bundle, base) else bundle.manifest.moved


def target_of(before: OperatingPoint, given: EvaluationSettings) -> EvaluationSettings:
    """What the threshold is fitted for: what the command says, and in what it leaves out the bundle's own.

    Another target than the bundle's has its own defaults.
    """
    target = given.target or before.target
    if before.target == "none" or target != before.target:
        return given
    alarm, miss = before.costs or (None, None)
    return replace(
        given,
        target=target,
        target_value=before.target_value if given.target_value is None else given.target_value,
        false_positive_cost=alarm if given.false_positive_cost is None else given.false_positive_cost,
        false_negative_cost=miss if given.false_negative_cost is None else given.false_negative_cost,
    )


class _InVllm:
    """vLLM in this process, in the place of alora's own scorer."""

    def __init__(self, bundles: Sequence[Bundle], base: LoadedBase, settings: BaseSettings) -> None:
        from alora.base.load import base_location
        from alora.serving.engine import Engine, ServedAdapter, require_unquantized

        require_unquantized(base)
        adapters = [ServedAdapter.of(bundle) for bundle in bundles]
        self._names = [adapter.name for adapter in adapters]
        self._engine = Engine(base_location(settings), adapters, str(base.model.dtype).removeprefix("torch."))

    def score_rows(self, questions: Sequence[Question]) -> list[Any]:
        """As :meth:`alora.prefix.scorer.Scorer.score_rows`."""
        ask = self._engine.label_logits
        return [ask(item.prefix, item.suffixes, [self._names[place] for place in item.asked]) for item in questions]


def _certificate(recipe: Recipe, bundle: Bundle, base: LoadedBase) -> Certificate | None:
    """The bundle's own; a new one where the base is quantized in another way, for it speaks of one base only."""
    from alora.bundle.manifest import CERTIFICATE_FILE
    from alora.bundle.move import is_move, require_movable
    from alora.identity.certificate import read_certificate
    from alora.identity.certify import certify
    from alora.probes import probe_conversations
    from alora.prompt.render import Prompt

    if not is_move(bundle, base):
        bundle.check_base(base)
        return None if bundle.manifest.certificate is None else read_certificate(bundle.folder / CERTIFICATE_FILE)
    require_movable(bundle, base)
    if not bundle.manifest.activated:
        return None
    note(f"proving KV identity of {bundle.policy.id} on the base in {base.fingerprint.quantization}")
    renderer = bundle.renderer(base)
    talks = probe_conversations(recipe.identity.conversations, "identity.conversations", least=1)
    prompts = [Prompt(renderer.prefix(talk), bundle.suffix) for talk in talks]
    certificate = certify(base, bundle.folder, prompts, recipe.identity)
    if not certificate.passed:
        raise CheckFailed(f"KV identity of {bundle.policy.id} failed: {'; '.join(certificate.failures[:3])}")
    return certificate


def _write(refit: Refit, base: LoadedBase, certificate: Certificate | None, place: Path) -> Bundle:
    from alora.bundle.write import BundleContents, write_bundle

    bundle, manifest = refit.bundle, refit.bundle.manifest
    contents = BundleContents(
        base=replace(base, source=base.source if manifest.base.local else manifest.base.source),
        weights=bundle.weights,
        policy=bundle.policy,
        prompt=manifest.prompt,
        operating_point=refit.point,
        template_kwargs=manifest.template_kwargs,
        certificate=certificate,
        evaluations=manifest.evaluations,
        data={**manifest.data, "validation": refit.predictions.label_counts},
        revision=manifest.base.revision,
        moved=refit.moved,
    )
    return write_bundle(contents, place, len(bundle.golden))


def _place(recipe: Recipe, artifact: Artifact, bundle: Bundle) -> Path:
    if recipe.output is None:
        return bundle.folder
    return Path(recipe.output) / bundle.folder.name if artifact.kind is Kind.BATTERY else Path(recipe.output)


def _show(recipe: Recipe, refits: Sequence[Refit], made: Sequence[Bundle], source: str) -> None:
    rows = []
    for refit, bundle in zip(refits, made, strict=True):
        packed = bundle.manifest.base.fingerprint.quantization
        before, after = refit.bundle.manifest.operating_point, refit.point
        was, now = refit.rates(before), refit.rates(after)
        rows.append(
            {
                "policy": refit.bundle.policy.id,
                "fitted in": f"{after.dtype}{'' if packed == 'none' else f' on {packed}'} by {after.engine}",
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
            f"{'what is no number' if far is None else f'{far:.2g}'}"
        )
    say(f"rows: {source}; what the old threshold does is on the same rows")
    for bundle in made:
        say(f"{bundle.policy.id}: {describe_operating_point(bundle.manifest.operating_point)}\n  {bundle.folder}")
