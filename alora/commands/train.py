"""``alora train``: labelled conversations → adapters → operating points → certificates → bundles → verdicts.

One policy is a battery of one. Every stage leaves its output in the run folder, whole or not at all, and is skipped
when it is there. A policy that fails is left out with its reason, and the others go on, as long as there are any.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from alora.adapter.folder import load_adapter
from alora.adapter.targets import trainable_modules
from alora.base.limits import require_rank, too_long_prompts
from alora.base.load import load_skeleton
from alora.bundle.battery import write_battery
from alora.bundle.hub import push_bundle
from alora.bundle.manifest import CardRecord
from alora.bundle.read import Bundle, load_bundle
from alora.bundle.run_rows import note_leak
from alora.bundle.write import BundleContents, write_bundle
from alora.commands.generate import generated
from alora.commands.output import say
from alora.commands.train_results import show_results
from alora.config.environment import describe_environment
from alora.config.paths import GENERATE
from alora.config.saved import save_recipe
from alora.config.schema import Recipe
from alora.data.conversation import read_conversation
from alora.data.findings import as_lines
from alora.data.probes import probe_conversations
from alora.data.splits import data_settings, known_rows, read_splits
from alora.errors import CheckFailed, ConfigError, RunError
from alora.evaluation.baselines import compare_with_baselines
from alora.evaluation.pages import note_doubts, write_judgement, write_run_overview
from alora.evaluation.predict import Predictions, out_of_fold_predictions
from alora.evaluation.records import Evaluation
from alora.evaluation.tables import read_evaluations
from alora.identity.certificate import Certificate, read_certificate, write_certificate
from alora.identity.certify import certify
from alora.policy import Policy, load_policies, note_unread_keys
from alora.prompt.render import Prompt
from alora.text import note
from alora.training.layout import POLICIES, TRAINING, link_only
from alora.training.processes import join_processes, open_base, whole
from alora.training.run_folder import RunFolder, holds_finished
from alora.training.standings import read_out_of_fold, read_training
from alora.training.tracking import require_tracking, start_tracking
from alora.training.training_run import TrainingRun, read_back, share_training, train_adapters
from alora.verdict import OperatingPoint


def run(recipe: Recipe) -> int:
    """Train from recipe to bundles; the exit code is 1 when some policies were left out."""
    started = time.monotonic()
    processes = join_processes(recipe.base.device)
    require_tracking(recipe.tracking)
    if recipe.training.threads:
        torch.set_num_threads(recipe.training.threads)
    policies, notes = load_policies(recipe.policy, recipe.policies), Counter[str]()
    note_unread_keys(policies, notes)
    splits, left_out = read_splits(data_settings(recipe), policies, notes)
    conversation = None if recipe.conversation is None else read_conversation(recipe.conversation, recipe.data)
    with RunFolder(recipe, writes=processes.first) as folder:
        base = open_base(recipe, processes)
        this = TrainingRun(recipe, folder, base, tuple(policies), splits, conversation, left_out)
        _require_ready(this)
        if not processes.first:
            share_training(this, processes)
            return 0
        resumed = folder.claim(this.inputs)  # a resume on other data or another base is refused
        _say_how_rows_were_read(this, resumed, notes)
        save_recipe(recipe, folder.settings, describe_environment())
        with start_tracking(recipe, folder.path, resumed, note) as tracking:
            train_adapters(this, tracking, processes)
            this = replace(this, base=whole(base, recipe))
            evaluations = _evaluate(this)
            tracking.evaluations([item for items in evaluations.values() for item in items])
        certificates = this.each(partial(_certify, this))
        bundles = this.each(lambda policy: _export(this, policy, evaluations[policy.id], certificates[policy.id]))
        write_battery(folder.battery, list(bundles.values()))
        if len(policies) == 1:
            link_only(folder.path, policies[0].id)
        else:
            write_run_overview(this, evaluations)
        _push(this, bundles)
        show_results(this, evaluations, certificates, bundles)
    say(f"done in {time.monotonic() - started:.0f} s")
    note_doubts([item for policy in this.going for item in evaluations[policy.id]], recipe.strict)
    return 1 if this.left_out else 0


def generate_rows(recipe: Recipe) -> Recipe:
    """The step before a training with ``data.train=generate``: the rows are written, and the recipe names their files.

    What the base does not fit, and a tracker that is missing, are refused before anything is paid for.
    """
    if recipe.data.train != GENERATE:
        return recipe
    if join_processes(recipe.base.device).count > 1:
        raise ConfigError("data.train=generate asks in one process; run alora generate, then train on its rows")
    require_tracking(recipe.tracking)
    _require_fit(recipe, load_skeleton(recipe.base))
    return generated(recipe)


def is_finished(recipe: Recipe) -> bool:
    """Whether the run is complete to its last bundle: settings, rows and policies equal the record, as does the name of
    the base, which is not loaded."""
    asked_more = recipe.data.train == GENERATE or recipe.export.push_to is not None or recipe.strict
    if asked_more or not Path(recipe.run_dir).is_dir():
        return False
    policies = load_policies(recipe.policy, recipe.policies)
    splits, left_out = read_splits(data_settings(recipe), policies)
    return not left_out and holds_finished(recipe, splits.digests(policies), [item.id for item in policies])


def metric(recipe: Recipe) -> float | None:
    """What a sweep lowers: the mean over the policies of the best validation loss. Test rows have no part in it."""
    records = sorted(Path(recipe.run_dir, POLICIES).glob(f"*/{TRAINING}"))
    losses = [loss for record in records if (loss := read_training(record).standing.best_loss) is not None]
    return sum(losses) / len(losses) if losses else None


def _require_fit(recipe: Recipe, model: PreTrainedModel) -> None:
    require_rank(model, recipe.adapter.rank)
    trainable_modules(model, recipe.adapter.targets)


def _require_ready(this: TrainingRun) -> None:
    """What would fail after the training fails before it: words and targets that the base lacks, long rows."""
    this.each(this.spec)
    _require_fit(this.recipe, this.base.model)
    rows = [*this.splits.train, *this.splits.validation, *this.splits.test]
    suffixes = {policy.id: this.renderer.suffix(policy) for policy in this.going}
    crowded = too_long_prompts(this.base.model, this.renderer, this.seen(rows, "measuring prompts"), suffixes)
    this.leave_out({name: ConfigError(text) for name, text in crowded.items()})
    probe_conversations(this.recipe.export.golden_rows, "export.golden_rows")


def _say_how_rows_were_read(this: TrainingRun, resumed: bool, notes: Counter[str]) -> None:
    for line in as_lines(notes):
        note(line)
    if resumed:
        note(f"going on in {this.folder.path}")
    for name, reason in this.left_out.items():
        note(f"{name} is left out: {reason}")
    rows = this.splits.validation
    note_leak(known_rows(rows, this.splits.train), rows, [policy.id for policy in this.policies],
              "training stops by them and the threshold is fitted to them, so figures are too good")  # fmt: skip


def _evaluate(this: TrainingRun) -> dict[str, list[Evaluation]]:
    """Figures per policy: its adapter, the base with the rule in the prompt, and a bag of words, on the same rows."""
    paths = {policy.id: this.folder.paths(policy.id) for policy in this.going}
    missing = [policy for policy in this.going if not paths[policy.id].evaluation.exists()]
    if missing:  # of all, since the others that are computed with a policy round its figures
        adapters = [load_adapter(paths[policy.id].adapter) for policy in this.going]
        found, failed = compare_with_baselines(
            this.base,
            this.renderer,
            this.going,
            adapters,
            this.splits,
            {policy.id: known for policy in this.going if (known := _out_of_fold(this, policy)) is not None},
            this.recipe.evaluation,
            this.recipe.training.seed,
            this.recipe.scoring.max_tokens,
        )
        this.leave_out(failed)
        for policy in missing:
            if policy.id in found:
                write_judgement(this, policy, found[policy.id])
    return this.each(partial(_figures, this))


def _out_of_fold(this: TrainingRun, policy: Policy) -> Predictions | None:
    """What the folds of a policy answered to the rows that they did not learn from; None where it has no folds."""
    if policy.id not in this.splits.folded:
        return None
    rows = this.splits.calibration(policy.id)
    answers = read_back(this.folder.paths(policy.id).training, read_out_of_fold)
    return out_of_fold_predictions(policy, rows, answers)


def _figures(this: TrainingRun, policy: Policy) -> list[Evaluation]:
    paths = this.folder.paths(policy.id)
    evaluations = read_back(paths.evaluation, read_evaluations)
    digest = load_adapter(paths.adapter).digest
    if [found.adapter_digest for found in evaluations[:1]] != [digest]:
        raise RunError(
            f"{paths.evaluation} is of another adapter than {digest[:12]}, which lies next to it; remove it and run "
            "the same command again: only this stage is done again"
        )
    return evaluations


def _certify(this: TrainingRun, policy: Policy) -> Certificate | None:
    """The KV identity certificate; a standard LoRA has none, because it shares no prefix."""
    if not this.activated:
        return None
    paths = this.folder.paths(policy.id)
    if paths.identity.exists():
        certificate = read_back(paths.identity, read_certificate)
    else:
        note(f"certifying KV identity of {policy.id}")
        suffix = this.renderer.suffix(policy)
        rows = this.splits.measured(policy.id)[1][: this.recipe.identity.conversations]
        prompts = [Prompt(this.renderer.prefix(row.conversation), suffix) for row in rows]
        certificate = certify(this.base, paths.adapter, prompts, this.recipe.identity)
        write_certificate(certificate, paths.identity)
    if not certificate.passed:
        raise CheckFailed(
            f"KV identity failed: {'; '.join([*certificate.failures[:3], *certificate.notes])}. No bundle was written; "
            f"the whole report is {paths.identity}"
        )
    return certificate


def _export(
    this: TrainingRun, policy: Policy, evaluations: Sequence[Evaluation], certificate: Certificate | None
) -> Bundle:
    paths = this.folder.paths(policy.id)
    if paths.bundle.exists():
        return _own_bundle(this, policy, evaluations[0].operating_point)
    note(f"exporting the bundle of {policy.id}")
    wanted, trained = this.recipe.export, read_back(paths.training, read_training)
    contents = BundleContents(
        base=this.base,
        weights=load_adapter(paths.adapter),
        policy=policy,
        prompt=this.recipe.prompt,
        operating_point=evaluations[0].operating_point,
        template_kwargs=this.recipe.base.template_kwargs,
        reasoning=this.recipe.data.reasoning,  # pyright: ignore[reportArgumentType]
        system=this.recipe.data.system,  # pyright: ignore[reportArgumentType]
        certificate=certificate,
        evaluations=tuple(evaluations),
        data=this.splits.counts(policy),
        system_share=this.splits.system_share(policy),
        revision=this.recipe.base.revision,
        chat_template=this.recipe.base.chat_template,
        card=CardRecord(wanted.license, tuple(wanted.languages), trained.hyperparameters),
    )
    return write_bundle(contents, paths.bundle, wanted.golden_rows)


def _own_bundle(this: TrainingRun, policy: Policy, point: OperatingPoint) -> Bundle:
    """The bundle that an earlier call wrote, or ``alora recalibrate`` since, which has another operating point."""
    paths = this.folder.paths(policy.id)
    bundle = load_bundle(paths.bundle)
    made, digest = bundle.manifest, load_adapter(paths.adapter).digest
    same = {
        "adapter": made.adapter_digest == digest,
        "policy": bundle.policy == policy,
        "prompt settings": (made.prompt, made.template_kwargs)
        == (this.recipe.prompt, this.recipe.base.template_kwargs),
        "operating point": made.operating_point.dtype is not None or made.operating_point == point,
    }
    if differing := [name for name, is_same in same.items() if not is_same]:
        raise RunError(
            f"{paths.bundle} is not of this run: another {' and '.join(differing)}; remove it and run the same command "
            "again: only this stage is done again"
        )
    return bundle


def _push(this: TrainingRun, bundles: dict[str, Bundle]) -> None:
    settings = this.recipe.export
    if settings.push_to is None:
        return
    for name, bundle in bundles.items():
        repository = f"{settings.push_to}-{name}" if this.recipe.policies else settings.push_to
        say(f"pushed {push_bundle(bundle.folder, repository, settings.private)}")
