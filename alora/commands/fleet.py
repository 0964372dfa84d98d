"""``alora fleet battery=DIR data.test=FILE [fleet.against=DIR]``: a battery's figures, drift and cross-fire, for CI."""

from collections.abc import Sequence
from dataclasses import replace

from alora.atomic import write_json
from alora.base.load import LoadedBase, load_base
from alora.bundle.artifact import Artifact, chosen, find_artifact, is_chosen, read_bundles
from alora.bundle.read import Bundle, answers_of, check_bases, load_bundle
from alora.bundle.run_rows import known_of_run, measured_settings, note_leak, read_for, read_noted
from alora.commands.output import report_file_in, say, say_json, table
from alora.config.schema import Recipe
from alora.data.conversation import LabelledConversation
from alora.data.sources import named
from alora.errors import ConfigError, DataError, LeftOut
from alora.evaluation.battery_report import FleetReport, Member, report
from alora.evaluation.tables import HEADINGS, table_rows
from alora.text import note

LEAST_CROSSFIRE = 0.5  # shown as a remark: one policy fires on at least half of another's positives


def run(recipe: Recipe) -> int:
    """1 when a policy fell below its last version by more than ``fleet.tolerance``, is gone, or has rows that fail."""
    file = report_file_in(recipe.output, "fleet.json")
    artifact = find_artifact(str(recipe.artifact))
    everyone, base_settings = read_bundles([str(artifact.folder)], recipe.base, (), load_bundle)
    by_name = chosen({bundle.policy.id: bundle for bundle in everyone}, recipe.policies, artifact)
    bundles = list(by_name.values())
    earlier: list[Bundle] | None = None
    if recipe.fleet.against is not None:
        earlier, _ = read_bundles([recipe.fleet.against], base_settings, (), load_bundle)
        earlier = [bundle for bundle in earlier if is_chosen(bundle.policy.id, recipe.policies)]
        for bundle in earlier:
            now = by_name.get(bundle.policy.id, bundle).policy.labels
            if now != bundle.policy.labels:
                raise ConfigError(
                    f"policy {bundle.policy.id} has the labels {', '.join(now)}, and in {recipe.fleet.against} "
                    f"{', '.join(bundle.policy.labels)}: no row is labelled for both; name the others in policies="
                )
    rows, left_out = _rows(recipe, artifact, read_for(everyone, bundles))
    unusable = {name: str(error) for name, error in left_out.items() if name in by_name}
    base = load_base(base_settings)
    members = _members(recipe, bundles, base, rows)
    before = None if earlier is None else _members(recipe, earlier, base, rows)
    known = known_of_run(artifact, rows)
    found = report(members, before, rows, recipe.evaluation, recipe.fleet, known)
    content = found.as_dict() | {"rows": len(rows), "unusable": unusable}
    write_json(file, content)
    for name, reason in unusable.items():
        note(f"{name} is left out: {reason}")
    note_leak(known, rows, by_name, "its figures on new rows may be far lower")
    if recipe.json:
        say_json(content)
    else:
        _show(recipe, found)
        say(f"\nwritten to {file}")
    return int(bool(found.regressed or unusable))


def _rows(recipe: Recipe, artifact: Artifact, bundles: Sequence[Bundle]) -> tuple[list[LabelledConversation], LeftOut]:
    data = measured_settings(recipe, artifact)
    source = data.test or ""
    rows, left_out = read_noted(source, data, [bundle.policy for bundle in bundles])
    if not any(row.labels for row in rows):
        raise DataError(f"{named(source)}: no row is labelled for a policy of this battery; give data.test=")
    return rows, left_out


def _members(
    recipe: Recipe, bundles: Sequence[Bundle], base: LoadedBase, rows: Sequence[LabelledConversation]
) -> list[Member]:
    """Every policy on every row, one pass a row."""
    if not bundles:  # of the last battery, none of the chosen policies
        return []
    check_bases(bundles, base)
    # A row is asked about by the policies that it is labelled for: here by all, whatever its labels.
    every = {bundle.policy.id: bundle.policy.positive for bundle in bundles}
    answers = answers_of(bundles, base, [replace(row, labels=every) for row in rows], recipe.scoring.max_tokens)
    return [
        Member(bundle.policy, bundle.manifest.operating_point, bundle.weights.digest, answered.logits_NL)
        for bundle, answered in zip(bundles, answers, strict=True)
    ]


def _show(recipe: Recipe, found: FleetReport) -> None:
    table(HEADINGS, table_rows(found.evaluations))
    if found.drifts:
        figures = recipe.fleet.figures
        say(f"\nagainst {recipe.fleet.against}; a fall of more than {recipe.fleet.tolerance:g} fails")
        rows = []
        for drift in found.drifts:
            changes = ["" if (change := drift.changes.get(name)) is None else f"{change:+.3f}" for name in figures]
            verdict = f"REGRESSED: {', '.join(drift.regressed)}" if drift.regressed else "ok"
            rows.append([drift.policy, drift.state, *changes, _plain(drift.flipped), _plain(drift.p_delong), verdict])
        table(("policy", "state", *figures, "verdicts flipped", "p DeLong", "verdict"), rows)
    crossfire = found.crossfire
    if len(crossfire.policies) < 2:
        return
    say("\nshare of each policy's positives (row) on which a policy (column) fires; own recall on the diagonal")
    rows = [[name, *map(_plain, shares)] for name, shares in zip(crossfire.policies, crossfire.fires, strict=True)]
    rows.append(["elsewhere", *map(_plain, crossfire.elsewhere)])
    table(("positives of", *crossfire.policies), rows)
    for row, own in enumerate(crossfire.policies):
        for column, other in enumerate(crossfire.policies):
            share = crossfire.fires[row][column]
            if row != column and share is not None and share >= LEAST_CROSSFIRE:
                note(f"{other} fires on {share:.0%} of the positives of {own}")


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
