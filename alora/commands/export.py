"""``alora export artifact=DIR output=DIR [export.push_to=NAME/REPOSITORY]``: a bundle that PEFT and vLLM load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from alora.bundle.artifact import Artifact, Kind, find_artifact
from alora.commands.artifacts import BareAdapter, open_adapter
from alora.commands.output import say, say_json, table
from alora.config.schema import ExportSettings, Recipe
from alora.errors import CheckFailed, ConfigError, RunError

if TYPE_CHECKING:
    from alora.adapter.folder import AdapterWeights
    from alora.bundle.read import Bundle
    from alora.evaluation.records import Evaluation
    from alora.identity.certificate import Certificate


def run(recipe: Recipe) -> int:
    """Make a bundle from a run or an adapter, or copy one; then push it where that is asked for."""
    from alora.bundle.hub import push_bundle

    if recipe.artifact is None:
        raise ConfigError("alora export needs artifact=DIR: a run folder, an adapter folder or a bundle")
    artifact = find_artifact(recipe.artifact)
    if artifact.kind is Kind.BATTERY:
        raise ConfigError(f"{artifact.folder} is a battery; export its bundles one by one")
    bundle = _copied(recipe, artifact.folder) if artifact.kind is Kind.BUNDLE else _made(recipe, artifact)
    pushed = None
    if recipe.export.push_to is not None:
        pushed = push_bundle(bundle.folder, recipe.export.push_to, recipe.export.private)
    if recipe.json:
        say_json({"bundle": str(bundle.folder), "pushed_to": pushed, "manifest": bundle.manifest.as_dict()})
    else:
        _show(bundle, pushed)
    return 0


def _copied(recipe: Recipe, folder: Path) -> Bundle:
    """A bundle is complete: it is checked, and copied where ``output`` says."""
    from alora.bundle.read import load_bundle
    from alora.bundle.write import copy_bundle

    if recipe.output is not None:
        return copy_bundle(folder, recipe.output)
    if recipe.export.push_to is None:
        raise ConfigError(
            f"{folder} is a bundle already; copy it with output=DIR or publish it with export.push_to=..."
        )
    return load_bundle(folder)


def _made(recipe: Recipe, artifact: Artifact) -> Bundle:
    from alora.adapter.folder import load_adapter
    from alora.base.load import load_base
    from alora.bundle.write import BundleContents, write_bundle
    from alora.verdict import OperatingPoint

    output = _output(recipe, artifact)
    adapter = open_adapter(artifact, recipe)
    weights = load_adapter(adapter.folder)
    places = dict.fromkeys((adapter.folder, artifact.run_file.parent if artifact.run_file else adapter.folder))
    certificate = _certificate(list(places), weights)
    evaluations = _evaluations(list(places)[-1], weights)
    contents = BundleContents(
        base=load_base(adapter.base),
        weights=weights,
        policy=adapter.policy,
        prompt=adapter.prompt,
        operating_point=evaluations[0].operating_point if evaluations else OperatingPoint(),
        template_kwargs=adapter.base.template_kwargs,
        certificate=certificate,
        evaluations=tuple(evaluations),
        data=_counts(artifact, evaluations),
        revision=adapter.base.revision,
    )
    return write_bundle(contents, output, _golden_rows(recipe, adapter))


def _output(recipe: Recipe, artifact: Artifact) -> Path:
    if recipe.output is not None:
        return Path(recipe.output)
    if artifact.kind is Kind.RUN:
        return artifact.folder / "bundle"
    raise ConfigError(f"say where the bundle of {artifact.folder} goes: output=DIR")


def _golden_rows(recipe: Recipe, adapter: BareAdapter) -> int:
    """The command's number, or its run's where the command says nothing."""
    untouched = recipe.export.golden_rows == ExportSettings().golden_rows
    return adapter.run.export.golden_rows if adapter.run is not None and untouched else recipe.export.golden_rows


def _certificate(places: list[Path], weights: AdapterWeights) -> Certificate | None:
    from alora.identity.certificate import FILE_NAME, read_certificate

    if not weights.spec.activated:
        return None
    for place in places:
        if (place / FILE_NAME).is_file():
            return read_certificate(place / FILE_NAME)
    raise CheckFailed(
        f"{places[0]} has no KV identity certificate; make it with "
        f"`alora validate artifact={places[0]} output={places[-1] / FILE_NAME}`, and export when it passes"
    )


def _evaluations(place: Path, weights: AdapterWeights) -> list[Evaluation]:
    """What ``evaluation.json`` says of this adapter, its own figures first; nothing when there is none.

    Raises:
        RunError: it is another adapter's.
    """
    from alora.evaluation.report import read_evaluations

    file = place / "evaluation.json"
    if not file.is_file():
        return []
    found = read_evaluations(file)
    own = [evaluation for evaluation in found if evaluation.adapter_digest == weights.digest]
    if not own:
        raise RunError(f"{file} is of another adapter than {weights.digest[:12]}; remove it and train again")
    return [*own, *(evaluation for evaluation in found if evaluation not in own)]


def _counts(artifact: Artifact, evaluations: list[Evaluation]) -> Mapping[str, Mapping[str, int]]:
    """Rows per split and label, from the run's earlier bundle; else of the evaluated rows alone."""
    if artifact.bundle is not None:
        from alora.bundle.manifest import read_manifest

        return read_manifest(artifact.bundle).data
    return {evaluation.split: evaluation.label_counts for evaluation in evaluations[:1]}


def _show(bundle: Bundle, pushed: str | None) -> None:
    manifest = bundle.manifest
    certificate = manifest.certificate
    proof = "none (standard LoRA)" if certificate is None else f"passed in {', '.join(certificate.dtypes)}"
    rows = [
        ("bundle", bundle.folder),
        ("policy", bundle.policy.id),
        ("base", manifest.base.source),
        ("adapter", manifest.adapter_digest[:12]),
        ("KV identity", proof),
        ("threshold", f"{manifest.operating_point.threshold:.4f}"),
        ("golden rows", f"{len(bundle.golden)}, conversations of alora's own" if bundle.golden else "none"),
    ]
    table(("what", "value"), rows + ([("pushed to", pushed)] if pushed else []))
    say("score a conversation with: alora score artifact=" + str(bundle.folder) + " conversation.json")
