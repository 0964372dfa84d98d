"""Labelled rows next to an artifact: read as its run read its own, where the command says nothing else."""

import contextlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from alora.bundle.artifact import Artifact, find_artifact, saved_run
from alora.bundle.manifest import read_manifest
from alora.config.saved import over
from alora.config.schema import ColumnSettings, DataSettings, Recipe
from alora.data.conversation import LabelledConversation
from alora.data.findings import Findings, as_lines
from alora.data.held_out import fold_rows, hold_out
from alora.data.sources import Source, named
from alora.data.splits import data_settings, known_rows, read_shared_rows, rows_digest, source_for
from alora.errors import AloraError, ConfigError, DataError, LeftOut, first_line
from alora.policy import Policy, load_policies
from alora.text import note
from alora.training.run_folder import open_claim

Rows = list[LabelledConversation]
Member = TypeVar("Member")


class RowsChanged(ConfigError):
    """A run's files hold other rows than it trained on: by now ``train``, and ``held`` out of them or validation."""

    train: Rows
    held: Rows


def settings_as_trained(recipe: Recipe, artifact: Artifact) -> DataSettings:
    """The command's data settings, and the artifact's run's where they leave rows, columns, labels or roles open."""
    run = saved_run(artifact)
    if run is not None and artifact.run is not None:
        open_claim(artifact.run, run)
    given = recipe.data if run is None else over(recipe.data, run.data, recipe.said, "data")
    if run is None and artifact.bundles:
        trained = read_manifest(artifact.bundles[0]).reading
        unsaid = [name for name in ("reasoning", "system") if f"data.{name}" not in recipe.said]
        given = replace(given, **{name: getattr(trained, name) for name in unsaid})
    mine, usual = recipe.data.columns, ColumnSettings()
    columns = replace(given.columns, group=None)  # a group says which side of a split a row is on
    spelt = {"data.columns.label", "data.columns.labels"} & recipe.said
    if spelt or (mine.label, mine.labels) != (usual.label, usual.labels):  # one choice: the run's half would hide it
        columns = replace(columns, label=mine.label, labels=mine.labels)
    return replace(given, columns=columns)


def measured_settings(recipe: Recipe, artifact: Artifact) -> DataSettings:
    """As :func:`settings_as_trained`, with test rows to measure the artifact on as it is."""
    given = settings_as_trained(recipe, artifact)
    if given.test is None:
        raise ConfigError("there are no rows to evaluate on; add data.test=FILE.jsonl")
    return given


def read_for(everyone: Sequence[Member], chosen: Sequence[Member]) -> Sequence[Member]:
    """For which policies rows are read: all that an artifact has, since a row may name any; of one chosen policy for
    that alone, and rows that name none are its own."""
    return chosen if len(chosen) == 1 else everyone


def trained_rows(artifact: Artifact) -> tuple[Rows, Rows, LeftOut]:
    """The rows that the artifact's run trained on, those that it held out of them or was given to calibrate by (none
    where they are others by now), and the policies whose rows cannot be read.

    Raises:
        RowsChanged: the rows at hand are others than the run read.
    """
    run = saved_run(artifact)
    if run is None or artifact.run is None or run.data.train is None:
        raise ConfigError(f"{artifact.folder} belongs to no run that names the rows that it was trained on")
    data, claim = run.data, open_claim(artifact.run, run)
    bundles = [read_manifest(folder).policy for folder in find_artifact(artifact.run).bundles]
    known = {policy.id: policy for policy in bundles}
    if not known.keys() >= set(claim.policies):  # some were left out, and their rows were held out all the same
        known = {policy.id: policy for policy in load_policies(run.policy, run.policies)}
    policies = [known[name] for name in claim.policies if name in known]  # without one, the rows are others
    rows, unread = read_shared_rows(data.train, data, policies, data.weights, use="train")
    rows, held, given = [row for row in rows if row.labels], [], []
    if validation := source_for(data, "validation"):
        with contextlib.suppress(AloraError):
            given = [row for row in read_shared_rows(validation, data, policies, use="validation")[0] if row.labels]
    if data.validation is None and not given:
        rows, held = hold_out(fold_rows(rows, data_settings(run).folds), data.validation_share)
    digests = {"train rows": rows_digest(rows)} | ({"validation rows": rows_digest(held)} if held else {})
    if given:
        held = given if claim.inputs.get("validation rows") == rows_digest(given) else []
    if any(claim.inputs.get(name) != digest for name, digest in digests.items()):
        error = RowsChanged(
            f"the rows of {named(data.train)} are not those that {artifact.run} was trained on: the file, or how alora "
            "reads it, has changed"
        )
        error.train, error.held = rows, held
        raise error
    return rows, held, unread


def note_reading(notes: Mapping[str, int]) -> None:
    """Print what of rows was not read literally."""
    for line in as_lines(notes):
        note(line)


def read_noted(
    source: Source, data: DataSettings, policies: Sequence[Policy], use: str = "test"
) -> tuple[Rows, LeftOut]:
    """As :func:`alora.data.splits.read_shared_rows`; the notes on how rows were read are printed."""
    findings = Findings()
    rows, left_out = read_shared_rows(source, data, policies, findings=findings, use=use)
    note_reading(findings.notes)
    return rows, left_out


def known_of_run(artifact: Artifact, rows: Rows, calibrated: bool = True) -> Counter[str]:
    """How many of ``rows`` the artifact's run trained on, or calibrated by, for each policy; of none where its own are
    not to be had."""
    try:
        train, held, _ = trained_rows(artifact)
    except AloraError as error:
        train, held = rows_by_now(error)
    return known_rows(rows, [*train, *(held if calibrated else [])])


def rows_by_now(error: AloraError) -> tuple[Rows, Rows]:
    """As the rows of :func:`trained_rows`, which raised ``error``: where they are others by now, the others, with a
    note; else none, with a note where there are some."""
    if isinstance(error, DataError):
        note(f"which rows are of the run's training cannot be told: {first_line(error)}")
    if not isinstance(error, RowsChanged):
        return [], []
    note("the training rows have changed since the run; rows of its training are counted by those that are there now, "
         "so some may be missed, or new")  # fmt: skip
    return error.train, error.held


def leaks(
    known: Mapping[str, int], rows: Sequence[LabelledConversation], names: Collection[str], what: str
) -> list[str]:
    """A warning of the rows that each policy's adapter knows; ``what`` they are good for."""
    asked = Counter(name for row in rows for name in row.labels)
    return [
        f"warning: {name}: {known[name]} of {asked[name]} rows are of its training; {what} [LEAK]"
        for name in sorted(known.keys() & set(names))
    ]


def note_leak(
    known: Mapping[str, int], rows: Sequence[LabelledConversation], policies: Collection[str], what: str
) -> None:
    """Print :func:`leaks`."""
    for line in leaks(known, rows, policies, what):
        note(line)
