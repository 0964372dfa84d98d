"""One call of ``alora train``: what its stages share, and what it says at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from alora.adapter.folder import AdapterSpec
from alora.base.load import LoadedBase
from alora.bundle.read import Bundle
from alora.commands.output import say, table
from alora.config.schema import Recipe
from alora.data.conversation import Conversation, LabelledConversation
from alora.data.splits import Splits
from alora.errors import AloraError, BundleError, LeftOut, RunError
from alora.evaluation.predict import answers
from alora.evaluation.records import Evaluation
from alora.evaluation.report import HEADINGS, describe_operating_point, table_rows
from alora.identity.certificate import Certificate
from alora.layout import BATTERY, BUNDLE, POLICIES, REPORT, RUN_FILE
from alora.policy import Policy
from alora.prefix.scorer import Scorer
from alora.prefix.store import PrefixStore
from alora.prompt.render import Renderer
from alora.training import RunFolder
from alora.verdict import make_verdict

Result = TypeVar("Result")


@dataclass(frozen=True)
class TrainingRun:
    """What every stage needs; ``left_out`` grows as policies fail."""

    recipe: Recipe
    folder: RunFolder
    base: LoadedBase
    policies: tuple[Policy, ...]
    splits: Splits
    renderer: Renderer
    conversation: Conversation | None  # scored at the end; None: the first held-out row
    left_out: LeftOut = field(default_factory=LeftOut)
    store: PrefixStore | None = None  # prefix KV, for training and evaluation

    @property
    def activated(self) -> bool:
        return self.recipe.adapter.kind == "alora"

    @property
    def going(self) -> list[Policy]:
        """The policies that have not failed."""
        return [policy for policy in self.policies if policy.id not in self.left_out]

    def spec(self, policy: Policy) -> AdapterSpec:
        """The adapter that the recipe asks for.

        Raises:
            PolicyError: the base's tokenizer cannot carry the policy's invocation or labels.
        """
        suffix = self.renderer.suffix(policy)
        return AdapterSpec.of(self.recipe.adapter, suffix.invocation_ids if self.activated else None)

    def each(self, stage: Callable[[TrainingRun, Policy], Result]) -> dict[str, Result]:
        """Run a stage for every policy that is left; an error costs its own policy only, until it was the last."""
        going = {policy.id: policy for policy in self.going}
        results = self.left_out.each(going, lambda name: stage(self, going[name]))
        self.leave_out({})
        return results

    def leave_out(self, failed: Mapping[str, AloraError]) -> None:
        """Go on without the policies that failed, as long as one is left."""
        self.left_out.update(failed)
        self.left_out.require_some(policy.id for policy in self.policies)


def read_back(file: Path, read: Callable[[Path], Result]) -> Result:
    """What an earlier call of the same run wrote to ``file``.

    Raises:
        RunError: it is damaged.
    """
    try:
        return read(file)
    except (RunError, BundleError) as error:
        raise RunError(
            f"{file} is damaged or of another version; remove it and run the same command again: only this stage is "
            "done again"
        ) from error


def show_results(
    this: TrainingRun,
    evaluations: Mapping[str, list[Evaluation]],
    certificates: dict[str, Certificate | None],
    bundles: dict[str, Bundle],
) -> None:
    """Print the figures, operating point, certificate and one verdict of each policy that is left, then those that were
    left out, and where everything lies."""
    split = evaluations[this.going[0].id][0].split
    say(f"\n{', '.join(policy.title for policy in this.going)} on {this.base.source}: {split} rows")
    table(HEADINGS, table_rows([item for policy in this.going for item in evaluations[policy.id]]))
    for policy in this.going:
        say(f"{policy.id}: {describe_operating_point(evaluations[policy.id][0].operating_point)}")
        if certificate := certificates[policy.id]:
            say(f"{policy.id}: {_describe(certificate)}")
    _show_verdicts(this, list(bundles.values()))
    if this.left_out:
        say()
        table(("left out", "why"), [(name, in_short(str(error))) for name, error in this.left_out.items()])
    say()
    names = {"report": REPORT, "settings": RUN_FILE, "policies": POLICIES, "battery": BATTERY, "bundle": BUNDLE}
    places = {what: this.folder.path / name for what, name in names.items()}
    table(("what", "where"), [(what, place) for what, place in places.items() if place.exists()])


def in_short(reason: str) -> str:
    """Of a reason, the first line, and the first finding where there are several."""
    return ": ".join(line.strip().removesuffix(":") for line in reason.splitlines()[:2])


def _describe(certificate: Certificate) -> str:
    caught = [control.caught for record in certificate.dtypes for control in record.controls]
    names = ", ".join(record.dtype for record in certificate.dtypes)
    return (
        f"KV identity certified in {names} on {len(certificate.lengths)} calls, "
        f"{sum(caught)} of {len(caught)} negative controls caught"
    )


def _show_verdicts(this: TrainingRun, bundles: Sequence[Bundle]) -> None:
    """The verdicts on the recipe's conversation, else on the first held-out row, from one pass."""
    row = LabelledConversation(this.conversation) if this.conversation else this.splits.held_out[0]
    conversation = row.conversation
    with Scorer(this.base, [bundle.weights for bundle in bundles]) as scorer:
        questions = this.renderer.questions(conversation, [bundle.suffix for bundle in bundles])
        ((_, logits),) = answers(scorer.score_rows, questions)
    for bundle, logits_L in zip(bundles, logits, strict=True):
        verdict = make_verdict(bundle.policy, logits_L, bundle.calibration, bundle.weights.digest)
        labelled = f", labelled {row.labels[bundle.policy.id]}" if bundle.policy.id in row.labels else ""
        say(
            f"{bundle.policy.id}: verdict on conversation {conversation.id}{labelled}: {verdict.label} "
            f"(P({bundle.policy.positive}) = {verdict.probability:.4f}, threshold {verdict.threshold:.4f})"
        )
