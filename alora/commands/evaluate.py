"""``alora evaluate artifact=DIR data.test=FILE``: figures on held-out rows, as a table and as ``evaluation.json``.

Of a battery (or a run of one) each policy on its own rows; ``policies=[...]`` takes some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from alora.bundle.artifact import Artifact, Kind, find_artifact
from alora.commands.artifacts import (
    BareAdapter,
    check_bases,
    chosen,
    data_settings,
    open_adapter,
    open_bundles,
    saved_run,
)
from alora.commands.output import note, report_file, say, say_json, table
from alora.config.paths import POLICY_PLACE
from alora.config.schema import DataSettings, Recipe
from alora.data.conversation import LabelledConversation
from alora.data.splits import merge_rows, read_policy_rows
from alora.errors import ConfigError, DataError
from alora.evaluation.calibration import OperatingPoint
from alora.evaluation.report import (
    HEADINGS,
    Evaluation,
    describe_operating_point,
    evaluate,
    table_rows,
    write_evaluations,
)
from alora.policy import Policy

if TYPE_CHECKING:
    from alora.adapter.folder import AdapterWeights

FILE_NAME = "evaluation.json"


def run(recipe: Recipe) -> int:
    """Evaluate a bundle, battery, run or adapter; beside it a bag of words where ``data.train`` is given.

    1 when a policy's own rows could not be read, and it was left out.
    """
    if recipe.artifact is None:
        raise ConfigError("alora evaluate needs artifact=DIR: a run folder, an adapter folder, a bundle or a battery")
    artifact = find_artifact(recipe.artifact)
    file = _file(recipe, artifact)
    unusable: dict[str, DataError] = {}
    if artifact.bundle is not None or artifact.kind is Kind.BATTERY:
        evaluations, unusable = _of_bundles(recipe, artifact)
    else:
        evaluations = _of_adapter(recipe, open_adapter(artifact, recipe))
    write_evaluations(file, evaluations)
    if recipe.json:
        say_json([evaluation.as_dict() for evaluation in evaluations])
    else:
        _show(evaluations, file)
    return int(bool(unusable))


def _of_bundles(recipe: Recipe, artifact: Artifact) -> tuple[list[Evaluation], dict[str, DataError]]:
    from alora.base.limits import IN_ARTIFACT, require_room
    from alora.base.load import load_base
    from alora.evaluation.predict import predict
    from alora.prefix.scorer import Scorer

    everyone, settings = open_bundles(replace(recipe, policies=[]))
    data = data_settings(recipe, saved_run(artifact))
    # Rows are read for the whole battery, whose policies a row may name, and only then are policies chosen.
    of_battery = [bundle.policy for bundle in everyone]
    if artifact.kind is Kind.BATTERY:
        everyone = chosen(everyone, recipe.policies, artifact.folder)
    wanted = {bundle.policy.id for bundle in everyone}
    rows, unread = _rows(data.test, data, of_battery)
    unusable = {name: error for name, error in unread.items() if name in wanted}
    for name, error in unusable.items():
        note(f"{name} is left out: {error}")
    bundles = [bundle for bundle in everyone if bundle.policy.id not in unusable]
    if not bundles and len(everyone) == 1:
        raise unusable[everyone[0].policy.id]
    if not bundles:
        raise DataError("no policy has rows to evaluate on; give data.test=")
    train, not_train = _rows(data.train, data, of_battery)
    for name in sorted(not_train.keys() & wanted):
        note(f"{name}: no bag of words: {not_train[name]}")
    policies = [bundle.policy for bundle in bundles]
    base = load_base(settings)
    check_bases(bundles, base)
    renderer = bundles[0].renderer(base)
    require_room(base.model, renderer, rows, {bundle.policy.id: bundle.suffix for bundle in bundles}, IN_ARTIFACT)
    with Scorer(base, [bundle.weights for bundle in bundles]) as scorer:
        predictions = predict(scorer, renderer, policies, [bundle.suffix for bundle in bundles], rows)
    found = []
    for bundle, predicted in zip(bundles, predictions, strict=True):
        if len(predicted.label_ids_N) == 0:
            note(f"{bundle.policy.id}: no test row is labelled for it, so it is left out")
            continue
        point, method = bundle.manifest.operating_point, _method(bundle.weights)
        digest = bundle.weights.digest
        found.append(evaluate(predicted, point, recipe.evaluation, method=method, adapter_digest=digest))
        found += _baseline(recipe, bundle.policy, train, rows)
    return found, unusable


def _of_adapter(recipe: Recipe, adapter: BareAdapter) -> list[Evaluation]:
    """An adapter without a manifest has no operating point: temperature 1, threshold one half."""
    from alora.adapter.folder import load_adapter
    from alora.base.limits import IN_ARTIFACT, IN_RECIPE, require_room
    from alora.base.load import load_base
    from alora.evaluation.predict import predict
    from alora.prefix.scorer import Scorer
    from alora.prompt.render import Renderer

    weights = load_adapter(adapter.folder)
    data = data_settings(recipe, adapter.run)
    rows, unusable = _rows(data.test, data, [adapter.policy])
    train, not_train = _rows(data.train, data, [adapter.policy])
    for error in (*unusable.values(), *not_train.values()):
        raise error
    base = load_base(adapter.base)
    renderer = Renderer(base.tokenizer, adapter.prompt, adapter.base.template_kwargs)
    suffix = renderer.suffix(adapter.policy)
    invoked_by = weights.spec.invocation_ids
    if invoked_by is not None and invoked_by != suffix.invocation_ids:
        raise ConfigError(
            f"{adapter.folder} is invoked by the tokens {list(invoked_by)}, but suffixes on this base begin with "
            f"{list(suffix.invocation_ids)}; give the base and prompt settings of its training"
        )
    require_room(base.model, renderer, rows, {adapter.policy.id: suffix}, IN_ARTIFACT if adapter.run else IN_RECIPE)
    with Scorer(base, [weights]) as scorer:
        (predicted,) = predict(scorer, renderer, [adapter.policy], [suffix], rows)
    note(f"{adapter.folder} has no manifest, so no threshold of its own: reported at 0.5, uncalibrated")
    point = OperatingPoint()
    found = evaluate(predicted, point, recipe.evaluation, method=_method(weights), adapter_digest=weights.digest)
    return [found, *_baseline(recipe, adapter.policy, train, rows)]


def _rows(
    source: str | None, data: DataSettings, policies: Sequence[Policy]
) -> tuple[list[LabelledConversation], dict[str, DataError]]:
    """Rows of all policies, and the policies whose own file cannot be used."""
    if source is None:
        return [], {}
    rows, unusable = read_policy_rows(source, data, policies)
    return merge_rows(rows) if POLICY_PLACE in str(source) else rows, unusable


def _method(weights: AdapterWeights) -> str:
    return "alora" if weights.spec.activated else "lora"


def _baseline(
    recipe: Recipe, policy: Policy, train: Sequence[LabelledConversation], rows: Sequence[LabelledConversation]
) -> list[Evaluation]:
    """The bag of words, where there are rows to fit it on; uncalibrated."""
    if not any(policy.id in row.labels for row in train):
        return []
    from alora.evaluation.bag_of_words import fit_bag_of_words

    try:
        baseline = fit_bag_of_words(policy, train)
    except DataError as error:
        note(f"no bag of words: {error}")
        return []
    return [evaluate(baseline.predict(rows), OperatingPoint(), recipe.evaluation, method="bag_of_words")]


def _file(recipe: Recipe, artifact: Artifact) -> Path:
    """``output``, a file or a folder for it; else the working folder. A run's own record is left as it is."""
    bare = artifact.folder if artifact.kind is Kind.ADAPTER else None  # keeps its evaluation next to its weights
    place = Path.cwd() if recipe.output is None else Path(recipe.output)
    return report_file(place if place.suffix == ".json" else place / FILE_NAME, bare)


def _show(evaluations: Sequence[Evaluation], file: Path) -> None:
    table(HEADINGS, table_rows(evaluations))
    for evaluation in evaluations:
        if evaluation.adapter_digest is not None:
            say(f"{evaluation.policy}: {describe_operating_point(evaluation.operating_point)}")
        if evaluation.truncated:
            say(f"{evaluation.policy}: {evaluation.truncated} of {evaluation.metrics.rows} rows were truncated")
    say(f"written to {file}")
