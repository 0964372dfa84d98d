"""``alora export artifact=DIR output=DIR [export.push_to=NAME/REPOSITORY]``: a bundle that PEFT and vLLM load."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from alora.bundle.artifact import Artifact, Kind, chosen, find_artifact, members_by_policy, saved_run
from alora.bundle.battery import write_battery
from alora.bundle.hub import push_bundle
from alora.bundle.manifest import CERTIFICATE_FILE, CardRecord, read_manifest
from alora.bundle.read import Bundle, load_bundle
from alora.bundle.subject import Subject, open_subject, require_own
from alora.bundle.write import BundleContents, copy_bundle, write_bundle
from alora.commands.output import say, say_json, table
from alora.config.saved import over
from alora.config.schema import Recipe
from alora.errors import CheckFailed, ConfigError, RunError
from alora.evaluation.records import Evaluation
from alora.evaluation.tables import read_evaluations
from alora.identity.certificate import Certificate, read_certificate
from alora.text import note
from alora.training.layout import BATTERY, EVALUATION, IDENTITY, TRAINING, home_of
from alora.training.standings import read_training
from alora.verdict import OperatingPoint


def run(recipe: Recipe) -> int:
    """Make a bundle from a run's adapter or a bare one, or copy one; then push it where that is asked for."""
    artifact = find_artifact(str(recipe.artifact))
    if artifact.several or recipe.policies:
        members = chosen(members_by_policy(artifact), recipe.policies, artifact, all_of=True)
        if len(members) > 1:
            raise ConfigError(
                f"{artifact.folder} holds several policies; export one: {next(iter(members.values()))}, or name it: "
                f"policies=[{next(iter(members))}]"
            )
        artifact = find_artifact(next(iter(members.values()))) if artifact.several else artifact
    whole = _whole_bundle(artifact)
    bundle = _made(recipe, artifact) if whole is None else _copied(recipe, artifact, whole)
    pushed = None
    if recipe.export.push_to is not None:
        pushed = push_bundle(bundle.folder, recipe.export.push_to, recipe.export.private)
    if recipe.json:
        say_json({"bundle": str(bundle.folder), "pushed_to": pushed, "manifest": bundle.manifest.as_dict()})
    else:
        _show(bundle, pushed)
    return 0


def _whole_bundle(artifact: Artifact) -> Path | None:
    """The bundle that is exported as it lies: the one named, or a run's that was recalibrated, whose operating point
    stands nowhere else; None where the bundle is made from the run's records."""
    bundles = artifact.bundles if artifact.kind in (Kind.BUNDLE, Kind.RUN) else ()
    refitted = [folder for folder in bundles if read_manifest(folder).operating_point.dtype is not None]
    return next(iter(refitted if artifact.kind is Kind.RUN else bundles), None)


def _copied(recipe: Recipe, artifact: Artifact, folder: Path) -> Bundle:
    """A bundle is complete: it is checked, and copied where ``output`` says."""
    own = read_manifest(folder)
    require_own(recipe, artifact, folder, own.prompt, own.template_kwargs, own.policy)
    if other := sorted(recipe.said & {"export.license", "export.languages"}):
        note(f"{', '.join(other)}: without effect, since {folder} is a bundle already, whose card is copied as it is")
    if recipe.output is not None:
        return copy_bundle(folder, recipe.output)
    if recipe.export.push_to is None:
        raise ConfigError(f"{folder} is a bundle already; copy it with output=DIR or publish with export.push_to=...")
    return load_bundle(folder)


def _made(recipe: Recipe, artifact: Artifact) -> Bundle:
    (folder,) = artifact.adapters or artifact.members
    if recipe.output is None and artifact.kind is not Kind.RUN:
        raise ConfigError(f"say where the bundle of {artifact.folder} goes: output=DIR")
    subject = open_subject(folder, artifact, recipe)
    policy, home = subject.require_policy(), home_of(folder)
    default = next(iter(artifact.bundles), artifact.folder / BATTERY / policy.id)  # in the run itself
    evaluations, run = _evaluations(home, subject), saved_run(artifact)
    settings = recipe.export if run is None else over(recipe.export, run.export, recipe.said, "export")
    contents = BundleContents(
        certificate=_certificate(home, subject, recipe.base.source),
        base=subject.load_base(),
        weights=subject.weights,
        policy=policy,
        prompt=subject.prompt,
        operating_point=evaluations[0].operating_point if evaluations else OperatingPoint(),
        template_kwargs=subject.base.template_kwargs,
        reasoning=(recipe if run is None else run).data.reasoning,  # pyright: ignore[reportArgumentType]
        system=(recipe if run is None else run).data.system,  # pyright: ignore[reportArgumentType]
        evaluations=tuple(evaluations),
        data=_counts(artifact, evaluations),
        revision=subject.base.revision,
        chat_template=subject.base.chat_template,
        card=CardRecord(
            settings.license,
            tuple(settings.languages),
            read_training(home / TRAINING).hyperparameters if (home / TRAINING).is_file() else {},
        ),
    )
    bundle = write_bundle(contents, recipe.output or default, settings.golden_rows)
    if recipe.output is None and default.parent == artifact.folder / BATTERY:
        write_battery(default.parent, [bundle])
    return bundle


def _certificate(home: Path, subject: Subject, base: str | None) -> Certificate | None:
    """The certificate with the adapter or with its records; a standard LoRA has none."""
    if not subject.weights.spec.activated:
        return None
    for folder in (subject.folder, home):
        if (folder / IDENTITY).is_file():
            return read_certificate(folder / IDENTITY)
    given = [f"base.source={base}"] if base else []
    settings = shlex.join([f"artifact={subject.folder}", *given, f"output={home / IDENTITY}"])
    raise CheckFailed(
        f"{subject.folder} has no KV identity certificate; make it with "
        f"`alora validate {settings}`, and export when it passes"
    )


def _evaluations(home: Path, subject: Subject) -> list[Evaluation]:
    """What ``evaluation.json`` says of this adapter, its own figures first; nothing when there is none."""
    file, digest = home / EVALUATION, subject.weights.digest
    if not file.is_file():
        return []
    evaluations = read_evaluations(file)
    own = [evaluation for evaluation in evaluations if evaluation.adapter_digest == digest]
    if not own:
        raise RunError(f"{file} is of another adapter than {digest[:12]}; remove it and train again")
    return [*own, *(evaluation for evaluation in evaluations if evaluation not in own)]


def _counts(artifact: Artifact, evaluations: list[Evaluation]) -> Mapping[str, Mapping[str, int]]:
    """Rows per split and label, from the run's earlier bundle; else of the evaluated rows alone."""
    if artifact.bundles:
        return read_manifest(artifact.bundles[0]).data
    return {evaluation.split: evaluation.label_counts for evaluation in evaluations[:1]}


def _show(bundle: Bundle, pushed: str | None) -> None:
    manifest = bundle.manifest
    certificate = manifest.certificate
    identity = "none (standard LoRA)" if certificate is None else f"passed in {', '.join(certificate.dtypes)}"
    if certificate is not None and read_certificate(bundle.folder / CERTIFICATE_FILE).without_controls:
        identity += ", without negative controls"
    rows = [
        ("bundle", bundle.folder),
        ("policy", bundle.policy.id),
        ("base", manifest.base.source),
        ("adapter", manifest.adapter_digest[:12]),
        ("KV identity", identity),
        ("threshold", f"{manifest.operating_point.threshold:.4f}"),
        ("golden rows", f"{len(bundle.golden)}, conversations of alora's own" if bundle.golden else "none"),
    ]
    table(("what", "value"), rows + ([("pushed to", pushed)] if pushed else []))
    say("score a conversation with: alora score " + shlex.join([f"artifact={bundle.folder}", "conversation.json"]))
