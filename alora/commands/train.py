"""``alora train``: labelled conversations → adapter → operating point → certificate → bundle → a verdict.

Every stage leaves its output in the run folder, whole or not at all, and is skipped when it is there.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from alora.adapter.folder import AdapterSpec, AdapterWeights, load_adapter, new_adapter, save_adapter
from alora.base.load import LoadedBase, load_base
from alora.bundle.read import Bundle, load_bundle
from alora.bundle.write import BundleContents, write_bundle
from alora.commands.output import note, say, table, write_json
from alora.config.environment import describe_environment
from alora.config.saved import save_recipe
from alora.config.schema import Recipe
from alora.conversation import LabelledConversation, read_conversation
from alora.errors import CheckFailed
from alora.evaluation.bag_of_words import fit_bag_of_words
from alora.evaluation.calibration import fit_operating_point
from alora.evaluation.predict import Predictions, predict
from alora.evaluation.report import (
    HEADINGS,
    Evaluation,
    describe_operating_point,
    evaluate,
    read_evaluations,
    table_rows,
    write_evaluations,
)
from alora.identity.certificate import Certificate, read_certificate, write_certificate
from alora.identity.certify import certify
from alora.policy import Policy, load_policy
from alora.prefix.scorer import Scorer
from alora.render import Prompt, Renderer
from alora.splits import Splits, read_splits, rows_digest
from alora.training import RunFolder, examples, fit
from alora.verdict import Verdict, make_verdict


@dataclass(frozen=True)
class _Run:
    """What every stage needs."""

    recipe: Recipe
    folder: RunFolder
    base: LoadedBase
    policy: Policy
    splits: Splits
    renderer: Renderer

    @property
    def activated(self) -> bool:
        return self.recipe.adapter.kind == "alora"


def run(recipe: Recipe) -> int:
    """Train one policy from its recipe to its bundle; the exit code."""
    started = time.monotonic()
    if recipe.training.threads:
        torch.set_num_threads(recipe.training.threads)
    policy = load_policy(recipe.policy)
    splits = read_splits(recipe.data, policy)
    with RunFolder(recipe) as folder:
        base = load_base(recipe.base)
        renderer = Renderer(base.tokenizer, recipe.prompt, recipe.base.template_kwargs)
        this = _Run(recipe, folder, base, policy, splits, renderer)
        if folder.claim(_inputs(this)):
            note(f"going on in {folder.path}")
        save_recipe(recipe, folder.settings, describe_environment())
        _train(this)
        evaluations = _evaluate(this)
        certificate = _prove(this)
        bundle = _export(this, evaluations, certificate)
        _show(this, evaluations, certificate, _score(this, bundle))
    say(f"done in {time.monotonic() - started:.0f} s")
    return 0


def _inputs(this: _Run) -> dict[str, str]:
    """Digests of all that the run reads, so that a resume on other data or another base is refused."""
    rows = {f"{name} rows": rows_digest(getattr(this.splits, name)) for name in ("train", "validation", "test")}
    base = {f"base {name}": value for name, value in this.base.fingerprint.as_dict().items()}
    return rows | base | {"policy text": repr(this.policy.as_dict())}


def _train(this: _Run) -> None:
    recipe, folder = this.recipe, this.folder
    if folder.adapter.exists():
        return
    rows = {
        name: examples(getattr(this.splits, name), [this.policy], this.renderer, this.activated)
        for name in ("train", "validation")
    }
    note(f"training {this.policy.id}: {len(rows['train'])} rows, {len(rows['validation'])} to validate on")
    fresh = new_adapter(_spec(this), this.base.model, recipe.training.seed)
    fitted = fit(this.base, [fresh], rows["train"], rows["validation"], recipe.training, folder.checkpoints)
    record = asdict(fitted)
    del record["adapters"]
    write_json(folder.training, record)
    save_adapter(fitted.adapters[0], folder.adapter, this.base.source)
    shutil.rmtree(folder.checkpoints, ignore_errors=True)


def _spec(this: _Run) -> AdapterSpec:
    settings = this.recipe.adapter
    return AdapterSpec(
        rank=settings.rank,
        alpha=2.0 * settings.rank if settings.alpha is None else settings.alpha,
        targets=tuple(sorted(settings.targets)),
        invocation_ids=this.renderer.suffix(this.policy).invocation_ids if this.activated else None,
    )


def _evaluate(this: _Run) -> list[Evaluation]:
    """Figures of the adapter, of the same base untrained, and of a bag of words, each calibrated on validation rows."""
    recipe, folder, splits = this.recipe, this.folder, this.splits
    if folder.evaluation.exists():
        return read_evaluations(folder.evaluation)
    adapter = load_adapter(folder.adapter)
    untrained = new_adapter(adapter.spec, this.base.model, recipe.training.seed)
    answers = {
        recipe.adapter.kind: lambda rows: _predict(this, adapter, rows),
        "untrained": lambda rows: _predict(this, untrained, rows),
        "bag_of_words": fit_bag_of_words(this.policy, splits.train, recipe.training.seed).predict,
    }
    held_out, split = (splits.test, "test") if splits.test else (splits.validation, "validation")
    evaluations = []
    for method, answer in answers.items():
        known = answer(splits.validation)
        point = fit_operating_point(known.logits_NL, known.label_ids_N, recipe.evaluation, recipe.training.seed)
        digest = adapter.digest if method == recipe.adapter.kind else None
        found = evaluate(answer(held_out), point, recipe.evaluation, method=method, split=split, adapter_digest=digest)
        evaluations.append(found)
    write_evaluations(folder.evaluation, evaluations)
    return evaluations


def _predict(this: _Run, adapter: AdapterWeights, rows: Sequence[LabelledConversation]) -> Predictions:
    with Scorer(this.base, [adapter], this.recipe.training.max_suffix_tokens) as scorer:
        return predict(scorer, this.renderer, [this.policy], [this.renderer.suffix(this.policy)], rows)[0]


def _prove(this: _Run) -> Certificate | None:
    """The KV identity certificate; a standard LoRA has none, because it shares no prefix."""
    if not this.activated:
        return None
    if this.folder.identity.exists():
        certificate = read_certificate(this.folder.identity)
    else:
        note("proving KV identity")
        rows = (this.splits.test or this.splits.validation)[: this.recipe.identity.conversations]
        suffix = this.renderer.suffix(this.policy)
        prompts = [Prompt(this.renderer.prefix(row.conversation), suffix) for row in rows]
        certificate = certify(this.base, this.folder.adapter, prompts, this.recipe.identity)
        write_certificate(certificate, this.folder.identity)
    if not certificate.passed:
        raise CheckFailed(
            f"KV identity failed: {'; '.join(certificate.failures[:3])}. No bundle was written; "
            f"the whole report is {this.folder.identity}"
        )
    return certificate


def _export(this: _Run, evaluations: Sequence[Evaluation], certificate: Certificate | None) -> Bundle:
    if this.folder.bundle.exists():
        return load_bundle(this.folder.bundle)
    note("exporting the bundle")
    counts = {
        name: {
            label: sum(row.labels.get(this.policy.id) == label for row in getattr(this.splits, name))
            for label in this.policy.labels
        }
        for name in ("train", "validation", "test")
    }
    contents = BundleContents(
        base=this.base,
        weights=load_adapter(this.folder.adapter),
        policy=this.policy,
        prompt=this.recipe.prompt,
        operating_point=evaluations[0].operating_point,
        template_kwargs=this.recipe.base.template_kwargs,
        certificate=certificate,
        evaluations=tuple(evaluations),
        data=counts,
        revision=this.recipe.base.revision,
    )
    return write_bundle(contents, this.folder.bundle, this.recipe.export.golden_rows)


def _score(this: _Run, bundle: Bundle) -> tuple[str, Verdict]:
    """The verdict on the recipe's conversation, else on the first held-out row; and which one it was."""
    if this.recipe.conversation is not None:
        conversation = read_conversation(this.recipe.conversation)
    else:
        conversation = (this.splits.test or this.splits.validation)[0].conversation
    with Scorer(this.base, [bundle.weights]) as scorer:
        logits_L = scorer.label_logits(this.renderer.prefix(conversation), [bundle.suffix])[0]
    return conversation.id, make_verdict(this.policy, logits_L.tolist(), bundle.calibration, bundle.weights.digest)


def _show(
    this: _Run, evaluations: Sequence[Evaluation], certificate: Certificate | None, scored: tuple[str, Verdict]
) -> None:
    say(f"\n{this.policy.title} ({this.policy.id}) on {this.base.source}, {evaluations[0].split} rows")
    table(HEADINGS, table_rows(evaluations))
    say(describe_operating_point(evaluations[0].operating_point))
    if certificate is not None:
        controls = [control.caught for record in certificate.dtypes for control in record.controls]
        names = ", ".join(record.dtype for record in certificate.dtypes)
        say(
            f"KV identity: proven in {names} on {len(certificate.lengths)} calls; "
            f"{sum(controls)} of {len(controls)} negative controls caught"
        )
    name, verdict = scored
    say(
        f"verdict on conversation {name}: {verdict.label} "
        f"(P({this.policy.positive}) = {verdict.probability:.4f}, threshold {verdict.threshold:.4f})"
    )
    say()
    places = {
        "adapter": this.folder.adapter,
        "figures": this.folder.evaluation,
        "certificate": this.folder.identity,
        "bundle": this.folder.bundle,
        "settings": this.folder.settings,
    }
    table(("what", "where"), [(what, place) for what, place in places.items() if place.exists()])
