"""``alora evaluate artifact=DIR data.test=FILE``: figures on held-out rows, as a table and as ``evaluation.json``.

Next to it are ``evaluation.html``, the page to judge them by, and ``evaluation.parquet`` with every row's probability.
Of several policies each is evaluated on its own rows, and has a page of its own; ``policies=[...]`` takes some of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from alora.atomic import write_text
from alora.base.limits import IN_ARTIFACT, IN_RECIPE, require_room
from alora.bundle.artifact import Artifact, Kind, chosen, find_artifact, saved_run
from alora.bundle.battery import require_one_base
from alora.bundle.read import check_bases
from alora.bundle.run_rows import measured_settings, read_for, read_noted, rows_by_now, trained_rows
from alora.bundle.subject import Subject, open_subject
from alora.commands.output import report_file, report_file_in, say, say_json, table
from alora.config.describe import without_effect
from alora.config.schema import DataSettings, EvaluationSettings, Recipe
from alora.data.conversation import LabelledConversation
from alora.data.splits import known_rows, read_shared_rows
from alora.errors import AloraError, ConfigError, DataError, LeftOut
from alora.evaluation.bag_of_words import fit_bag_of_words, out_of_fold_words
from alora.evaluation.baselines import calibrated, with_leads
from alora.evaluation.calibration import refit_settings
from alora.evaluation.pages import note_doubts, write_page
from alora.evaluation.predict import Predictions, predict
from alora.evaluation.records import Evaluation
from alora.evaluation.report_html import render_overview
from alora.evaluation.tables import (
    HEADINGS,
    Judged,
    Scored,
    describe_operating_point,
    evaluate,
    table_rows,
    write_evaluations,
    write_predictions,
)
from alora.policy import Policy
from alora.prefix.scorer import Scorer
from alora.prompt.render import Renderer
from alora.text import note
from alora.training.layout import EVALUATION, TRAINING, home_of
from alora.verdict import OperatingPoint

Rows = Sequence[LabelledConversation]


@dataclass(frozen=True)
class _Taught:
    """What a bag of words is fitted on, and how: training rows, and validation rows for its operating point, if any."""

    train: Rows
    validation: Rows = ()
    seed: int = 0


def run(recipe: Recipe) -> int:
    """Evaluate all adapters of an artifact, and a bag of words where ``data.train`` is given.

    1 when a policy's rows could not be read, and it was left out.
    """
    artifact = find_artifact(str(recipe.artifact))
    bare = [artifact.folder] if artifact.kind is Kind.ADAPTER else []  # keeps its evaluation next to its weights
    file = report_file_in(recipe.output, EVALUATION, *bare)
    everyone = [open_subject(folder, artifact, recipe) for folder in artifact.members]
    if artifact.bundles:
        require_one_base([subject.bundle for subject in everyone if subject.bundle])
    subjects = chosen({subject.require_policy().id: subject for subject in everyone}, recipe.policies, artifact)
    data = measured_settings(recipe, artifact)
    policies = [subject.require_policy() for subject in read_for(everyone, list(subjects.values()))]
    rows, unread = read_noted(data.test, data, policies)
    pages = {name: file.with_suffix(f".{name}.html" if len(subjects) > 1 else ".html") for name in subjects}
    for path in {file.with_suffix(".parquet"), file.with_suffix(".html"), *pages.values()}:
        report_file(path)
    left_out = LeftOut({name: error for name, error in unread.items() if name in subjects})
    left_out.require_some(subjects)
    for name, error in left_out.items():
        note(f"{name} is left out: {error}")
    taught, known, not_train = _training_rows(recipe, artifact, data, policies)
    for name in sorted(not_train.keys() & subjects.keys()):
        note(f"{name}: no bag of words: {not_train[name]}")
    going = [subject for name, subject in subjects.items() if name not in left_out]
    shorten = IN_ARTIFACT if artifact.bundles or artifact.run else IN_RECIPE
    judged = _evaluate(recipe, going, rows, taught, known_rows(rows, known), shorten)
    evaluations = [evaluation for one in judged for evaluation in one.evaluations]
    _write(recipe, file, pages, judged, subjects, data)
    if recipe.json:
        say_json([evaluation.as_dict() for evaluation in evaluations])
    else:
        _show(evaluations, file)
    note_doubts(evaluations, recipe.strict)
    return int(bool(left_out))


def _training_rows(
    recipe: Recipe, artifact: Artifact, data: DataSettings, policies: Sequence[Policy]
) -> tuple[_Taught, Rows, LeftOut]:
    """``data.train`` of the command; else what the artifact's run trained on, where that is still to be had. And the
    rows that the adapters know: the run's own, whatever the command says, or ``data.train`` where there is no run."""

    def named() -> tuple[Rows, LeftOut]:
        return ([], LeftOut()) if data.train is None else read_shared_rows(data.train, data, policies, use="train")

    run = saved_run(artifact)
    if run is None:
        rows, unread = named()
        return _Taught(rows), rows, unread
    others = data.train is None or (data.train != run.data.train and "data.train" in recipe.said)
    own, held, unread = [], [], LeftOut()
    try:
        own, held, unread = trained_rows(artifact)
        known = [*own, *held]
    except AloraError as error:
        if not others:
            note(f"no bag of words: {error}")
        known = list(chain(*rows_by_now(error)))
    if others:
        rows, unread = named()
        return _Taught(rows), known, unread
    return _Taught(own, held, run.training.seed), known, unread


def _evaluate(
    recipe: Recipe,
    subjects: Sequence[Subject],
    rows: Rows,
    taught: _Taught,
    trained_on: Mapping[str, int],
    in_long_rows: str,
) -> list[Judged]:
    base = subjects[0].load_base()
    check_bases([subject.bundle for subject in subjects if subject.bundle], base)
    renderer = Renderer(base.tokenizer, subjects[0].prompt, subjects[0].base.template_kwargs)
    suffixes = {subject.require_policy().id: subject.suffix(renderer) for subject in subjects}
    require_room(base.model, renderer, rows, suffixes, in_long_rows)
    with Scorer(base, [subject.weights for subject in subjects]) as scorer:
        policies = [subject.require_policy() for subject in subjects]
        predictions = predict(
            scorer, renderer, policies, list(suffixes.values()), rows, max_tokens=recipe.scoring.max_tokens
        )
    judged, fitted_on = [], known_rows(rows, taught.train)
    for subject, predicted in zip(subjects, predictions, strict=True):
        if len(predicted.label_ids_N) == 0:
            note(f"{predicted.policy.id}: no test row is labelled for it, so it is left out")
            continue
        known = trained_on[predicted.policy.id]
        baseline = _baseline(recipe, subject, taught, rows, fitted_on[predicted.policy.id])
        methods = with_leads([_of_adapter(recipe, subject, predicted, known), *baseline], recipe.evaluation)
        asked = {"test": [row for row in rows if predicted.policy.id in row.labels]}
        judged.append(Judged(predicted.policy, methods, asked))
    if not judged:
        raise DataError("no test row is labelled for any of the policies; give others with data.test=")
    return judged


def _write(
    recipe: Recipe,
    file: Path,
    pages: Mapping[str, Path],
    judged: Sequence[Judged],
    subjects: Mapping[str, Subject],
    data: DataSettings,
) -> None:
    """Every row's probability, the pages, and last the figures, whose file says that the evaluation is done."""
    write_predictions(file.with_suffix(".parquet"), judged)
    for one in judged:
        name = one.policy.id
        settings, training = _settings(recipe, subjects[name], data), home_of(subjects[name].folder) / TRAINING
        write_page(pages[name], one, recipe.evaluation, settings, training)
    if len(pages) > 1:
        addresses = {pages[one.policy.id].name: one.evaluations for one in judged}
        write_text(file.with_suffix(".html"), render_overview(addresses, {}))
    write_evaluations(file, [evaluation for one in judged for evaluation in one.evaluations])


def _settings(recipe: Recipe, subject: Subject, data: DataSettings) -> dict[str, Any]:
    """What the figures depend on: the adapter's own, whatever the command's recipe says, and the rows as they were
    read."""
    spec, read, evaluation = subject.weights.spec, asdict(data), recipe.evaluation
    unused = {key.removeprefix("data.") for key in without_effect("evaluate", [f"data.{name}" for name in read])}
    return {
        "artifact": str(subject.folder),
        "base": asdict(subject.base),
        "adapter": {"kind": "alora" if spec.activated else "lora", "rank": spec.rank},
        "policy": subject.require_policy().as_dict(),
        "data": {name: value for name, value in read.items() if name not in unused},
        "prompt": asdict(subject.prompt),
        "evaluation": {"bootstrap": evaluation.bootstrap, "report_texts": evaluation.report_texts},
    }


def _point(subject: Subject) -> OperatingPoint:
    """An adapter without a manifest has none: temperature 1, threshold one half."""
    return OperatingPoint() if subject.bundle is None else subject.bundle.manifest.operating_point


def _of_adapter(recipe: Recipe, subject: Subject, predicted: Predictions, trained_on: int) -> Scored:
    point = _point(subject)
    if subject.bundle is None:
        note(f"{subject.folder} has no manifest, so no threshold of its own: reported at 0.5, uncalibrated")
    method, digest = "alora" if subject.weights.spec.activated else "lora", subject.weights.digest
    found = evaluate(predicted, point, recipe.evaluation, method=method, adapter_digest=digest, trained_on=trained_on)
    return Scored(found, {"test": predicted})


def _baseline(recipe: Recipe, subject: Subject, taught: _Taught, rows: Rows, fitted_on: int) -> list[Scored]:
    """The bag of words, where there are rows to fit it on, calibrated for the adapter's target where it can be."""
    policy = subject.require_policy()
    if not any(policy.id in row.labels for row in taught.train):
        return []
    try:
        baseline = fit_bag_of_words(policy, taught.train, taught.seed)
    except DataError as error:
        note(f"no bag of words: {error}")
        return []
    predicted, method = {"test": baseline.predict(rows)}, "bag_of_words"
    try:
        folded = [row for row in taught.train if policy.id in row.folds]
        known = out_of_fold_words(policy, folded, taught.seed) if folded else baseline.predict(taught.validation)
        parts = {"held out": known} | predicted
        settings = refit_settings(_point(subject), EvaluationSettings(bootstrap=recipe.evaluation.bootstrap))
        found = calibrated(method, parts, settings, None, taught.seed, fitted_on).evaluation
    except (DataError, ConfigError):
        why = "without the run's validation rows, of both kinds: compare it by AUROC"
        note(f"{policy.id}: the bag of words is at 0.5, uncalibrated, {why}")
        found = evaluate(predicted["test"], OperatingPoint(), recipe.evaluation, method=method, trained_on=fitted_on)
    return [Scored(found, predicted)]


def _show(evaluations: Sequence[Evaluation], file: Path) -> None:
    table(HEADINGS, table_rows(evaluations))
    for evaluation in evaluations:
        if evaluation.adapter_digest is not None:
            say(f"{evaluation.policy}: {describe_operating_point(evaluation.operating_point)}")
        if evaluation.truncated:
            say(f"{evaluation.policy}: {evaluation.truncated} of {evaluation.metrics.rows} rows were truncated")
    say(f"written to {file}, and {file.with_suffix('.html').name} to look at")
