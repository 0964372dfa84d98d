"""``alora train``: labelled conversations → adapters → operating points → certificates → bundles → verdicts.

One policy or a battery of them: the same stages, in one run on one base. Every stage leaves its output in the run
folder, whole or not at all, and is skipped when it is there. In a battery, a policy that fails is left out with its
reason, and the others go on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeVar

import torch

from alora.adapter.folder import AdapterSpec, load_adapter, new_adapter, save_adapter, target_modules
from alora.base.load import LoadedBase, load_base
from alora.bundle.battery import write_battery
from alora.bundle.hub import push_bundle
from alora.bundle.read import Bundle, load_bundle
from alora.bundle.write import BundleContents, write_bundle
from alora.commands.output import note, say, table, write_json
from alora.config.environment import describe_environment
from alora.config.saved import save_recipe
from alora.config.schema import Recipe
from alora.conversation import Conversation, read_conversation
from alora.errors import AloraError, CheckFailed, DataError
from alora.evaluation.baselines import compare_with_baselines
from alora.evaluation.report import (
    HEADINGS,
    Evaluation,
    describe_operating_point,
    read_evaluations,
    table_rows,
    write_evaluations,
)
from alora.identity.certificate import Certificate, read_certificate, write_certificate
from alora.identity.certify import certify
from alora.policy import Policy, load_battery_policies, load_policy
from alora.prefix.scorer import Scorer
from alora.probes import probe_conversations
from alora.render import Prompt, Renderer
from alora.splits import Splits, read_battery_splits, read_splits, rows_digest
from alora.training import RunFolder, examples, fit
from alora.verdict import make_verdict

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Run:
    """What every stage needs; ``left_out`` grows as policies fail."""

    recipe: Recipe
    folder: RunFolder
    base: LoadedBase
    policies: tuple[Policy, ...]
    splits: Splits
    renderer: Renderer
    conversation: Conversation | None  # scored at the end; None: the first held-out row
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def activated(self) -> bool:
        return self.recipe.adapter.kind == "alora"

    @property
    def going(self) -> list[Policy]:
        """The policies that have not failed."""
        return [policy for policy in self.policies if policy.id not in self.left_out]

    def each(self, stage: Callable[[_Run, Policy], Result]) -> dict[str, Result]:
        """Run a stage for every policy; in a battery an error costs its own policy only."""
        results = {}
        for policy in self.going:
            try:
                results[policy.id] = stage(self, policy)
            except AloraError as error:
                if not self.recipe.policies:
                    raise
                self.left_out[policy.id] = str(error)
        return results


def run(recipe: Recipe) -> int:
    """Train from recipe to bundles; the exit code is 1 when a policy of a battery was left out."""
    started = time.monotonic()
    if recipe.training.threads:
        torch.set_num_threads(recipe.training.threads)
    policies, splits, left_out = _read(recipe)
    conversation = None if recipe.conversation is None else read_conversation(recipe.conversation)
    with RunFolder(recipe) as folder:
        base = load_base(recipe.base)
        renderer = Renderer(base.tokenizer, recipe.prompt, recipe.base.template_kwargs)
        this = _Run(recipe, folder, base, tuple(policies), splits, renderer, conversation, left_out)
        _require_ready(this)
        if folder.claim(_inputs(this)):
            note(f"going on in {folder.path}")
        save_recipe(recipe, folder.settings, describe_environment())
        _train(this)
        evaluations = _evaluate(this)
        certificates = this.each(_prove)
        bundles = this.each(lambda _, policy: _export(this, policy, evaluations[policy.id], certificates[policy.id]))
        if recipe.policies and bundles:
            write_battery(folder.battery, list(bundles.values()))
        _push(this, bundles)
        _show(this, evaluations, certificates, bundles)
    say(f"done in {time.monotonic() - started:.0f} s")
    return 1 if this.left_out else 0


def _read(recipe: Recipe) -> tuple[list[Policy], Splits, dict[str, str]]:
    if not recipe.policies:
        policy = load_policy(recipe.policy)
        return [policy], read_splits(recipe.data, policy), {}
    policies = load_battery_policies(recipe.policy, recipe.policies)
    splits, left_out = read_battery_splits(recipe.data, policies)
    return policies, splits, left_out


def _require_ready(this: _Run) -> None:
    """What would fail after the training fails before it: words and targets that the base lacks, golden rows."""
    this.each(_spec)
    target_modules(this.base.model, this.recipe.adapter.targets)
    probe_conversations(this.recipe.export.golden_rows, "export.golden_rows")


def _inputs(this: _Run) -> dict[str, str]:
    """Digests of all that the run reads, so that a resume on other data or another base is refused."""
    rows = {f"{name} rows": rows_digest(getattr(this.splits, name)) for name in ("train", "validation", "test")}
    base = {f"base {name}": value for name, value in this.base.fingerprint.as_dict().items()}
    return rows | base | {f"policy {policy.id}": repr(policy.as_dict()) for policy in this.policies}


def _train(this: _Run) -> None:
    """All policies at once, each from its own row order and seed; what training gives up is left out."""
    recipe, folder = this.recipe, this.folder
    policies = this.going
    if not policies:
        raise DataError("no policy can be trained", [f"{name}: {why}" for name, why in this.left_out.items()])
    if not all(folder.places(policy.id).training.exists() for policy in policies):
        rows = {
            name: examples(getattr(this.splits, name), policies, this.renderer, this.activated)
            for name in ("train", "validation")
        }
        names = ", ".join(policy.id for policy in policies)
        note(f"training {names}: {len(rows['train'])} conversations, {len(rows['validation'])} to validate on")
        fresh = [new_adapter(_spec(this, policy), this.base.model, recipe.training.seed) for policy in policies]
        fitted = fit(this.base, fresh, rows["train"], rows["validation"], recipe.training, folder.checkpoints)
        for policy, adapter, standing in zip(policies, fitted.adapters, fitted.standings, strict=True):
            places = folder.places(policy.id)
            if standing.dropped is None:
                save_adapter(adapter, places.adapter, this.base.source)
            record = {"standing": asdict(standing), "steps": fitted.steps, "history": list(fitted.history)}
            write_json(places.training, record)
        shutil.rmtree(folder.checkpoints, ignore_errors=True)
    for policy in policies:
        if not folder.places(policy.id).adapter.exists():
            this.left_out[policy.id] = "its loss was not finite; lower training.learning_rate, or look at its rows"


def _spec(this: _Run, policy: Policy) -> AdapterSpec:
    settings = this.recipe.adapter
    return AdapterSpec(
        rank=settings.rank,
        alpha=2.0 * settings.rank if settings.alpha is None else settings.alpha,
        targets=tuple(sorted(settings.targets)),
        invocation_ids=this.renderer.suffix(policy).invocation_ids if this.activated else None,
    )


def _evaluate(this: _Run) -> dict[str, list[Evaluation]]:
    """Figures per policy: its adapter, the same base untrained, and a bag of words, on the same rows."""
    places = {policy.id: this.folder.places(policy.id) for policy in this.going}
    missing = [policy for policy in this.going if not places[policy.id].evaluation.exists()]
    if missing:
        adapters = [load_adapter(places[policy.id].adapter) for policy in missing]
        found, failed = compare_with_baselines(
            this.base, this.renderer, missing, adapters, this.splits, this.recipe.evaluation, this.recipe.training.seed
        )
        if failed and not this.recipe.policies:
            raise next(iter(failed.values()))
        this.left_out.update({name: str(error) for name, error in failed.items()})
        for name, evaluations in found.items():
            write_evaluations(places[name].evaluation, evaluations)
    return this.each(lambda _, policy: read_evaluations(places[policy.id].evaluation))


def _prove(this: _Run, policy: Policy) -> Certificate | None:
    """The KV identity certificate; a standard LoRA has none, because it shares no prefix."""
    if not this.activated:
        return None
    places = this.folder.places(policy.id)
    if places.identity.exists():
        certificate = read_certificate(places.identity)
    else:
        note(f"proving KV identity of {policy.id}")
        labelled = [row for row in this.splits.test or this.splits.validation if policy.id in row.labels]
        suffix = this.renderer.suffix(policy)
        rows = labelled[: this.recipe.identity.conversations]
        prompts = [Prompt(this.renderer.prefix(row.conversation), suffix) for row in rows]
        certificate = certify(this.base, places.adapter, prompts, this.recipe.identity)
        write_certificate(certificate, places.identity)
    if not certificate.passed:
        raise CheckFailed(
            f"KV identity failed: {'; '.join(certificate.failures[:3])}. No bundle was written; "
            f"the whole report is {places.identity}"
        )
    return certificate


def _export(this: _Run, policy: Policy, evaluations: Sequence[Evaluation], certificate: Certificate | None) -> Bundle:
    places = this.folder.places(policy.id)
    if places.bundle.exists():
        return load_bundle(places.bundle)
    note(f"exporting the bundle of {policy.id}")
    counts = {
        name: {
            label: sum(row.labels.get(policy.id) == label for row in getattr(this.splits, name))
            for label in policy.labels
        }
        for name in ("train", "validation", "test")
    }
    contents = BundleContents(
        base=this.base,
        weights=load_adapter(places.adapter),
        policy=policy,
        prompt=this.recipe.prompt,
        operating_point=evaluations[0].operating_point,
        template_kwargs=this.recipe.base.template_kwargs,
        certificate=certificate,
        evaluations=tuple(evaluations),
        data=counts,
        revision=this.recipe.base.revision,
    )
    return write_bundle(contents, places.bundle, this.recipe.export.golden_rows)


def _push(this: _Run, bundles: dict[str, Bundle]) -> None:
    settings = this.recipe.export
    if settings.push_to is None:
        return
    for name, bundle in bundles.items():
        repository = f"{settings.push_to}-{name}" if this.recipe.policies else settings.push_to
        say(f"pushed {push_bundle(bundle.folder, repository, settings.private)}")


def _show(
    this: _Run,
    evaluations: dict[str, list[Evaluation]],
    certificates: dict[str, Certificate | None],
    bundles: dict[str, Bundle],
) -> None:
    shown = [policy for policy in this.going if policy.id in bundles]
    if shown:
        split = evaluations[shown[0].id][0].split
        say(f"\n{', '.join(policy.title for policy in shown)} on {this.base.source}: {split} rows")
        table(HEADINGS, table_rows([item for policy in shown for item in evaluations[policy.id]]))
    for policy in shown:
        say(f"{policy.id}: {describe_operating_point(evaluations[policy.id][0].operating_point)}")
        if certificate := certificates[policy.id]:
            say(f"{policy.id}: {_describe(certificate)}")
    if shown:
        _show_verdicts(this, [bundles[policy.id] for policy in shown])
    if this.left_out:
        say()
        table(("left out", "why"), [(name, reason.splitlines()[0]) for name, reason in this.left_out.items()])
    say()
    one = None if this.recipe.policies or not shown else this.folder.places(shown[0].id)
    rows = [("settings", this.folder.settings)]
    rows += [(name, getattr(one, name)) for name in ("adapter", "evaluation", "identity", "bundle") if one]
    rows += [] if one else [("policies", this.folder.path / "policies"), ("battery", this.folder.battery)]
    table(("what", "where"), [(what, place) for what, place in rows if place.exists()])


def _describe(certificate: Certificate) -> str:
    caught = [control.caught for record in certificate.dtypes for control in record.controls]
    names = ", ".join(record.dtype for record in certificate.dtypes)
    return (
        f"KV identity proven in {names} on {len(certificate.lengths)} calls, "
        f"{sum(caught)} of {len(caught)} negative controls caught"
    )


def _show_verdicts(this: _Run, bundles: Sequence[Bundle]) -> None:
    """The verdicts on the recipe's conversation, else on the first held-out row, from one pass."""
    conversation = this.conversation or (this.splits.test or this.splits.validation)[0].conversation
    with Scorer(this.base, [bundle.weights for bundle in bundles]) as scorer:
        logits = scorer.label_logits(this.renderer.prefix(conversation), [bundle.suffix for bundle in bundles])
    for bundle, logits_L in zip(bundles, logits, strict=True):
        verdict = make_verdict(bundle.policy, logits_L.tolist(), bundle.calibration, bundle.weights.digest)
        say(
            f"{bundle.policy.id}: verdict on conversation {conversation.id}: {verdict.label} "
            f"(P({bundle.policy.positive}) = {verdict.probability:.4f}, threshold {verdict.threshold:.4f})"
        )
