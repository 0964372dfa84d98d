"""What ``alora train`` prints at its end: figures, operating points, certificates, a verdict, and where it all is."""

import shlex
from collections.abc import Mapping, Sequence

from alora.bundle.read import Bundle
from alora.commands.output import say, table
from alora.data.conversation import LabelledConversation
from alora.evaluation.pages import in_short
from alora.evaluation.predict import answers
from alora.evaluation.records import Evaluation
from alora.evaluation.tables import HEADINGS, describe_operating_point, table_rows
from alora.identity.certificate import Certificate
from alora.prefix.scorer import Scorer
from alora.training.layout import BATTERY, BUNDLE, POLICIES, REPORT, RUN_FILE
from alora.training.training_run import TrainingRun
from alora.verdict import OperatingPoint, make_verdict


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
        say_fitted_again(bundles[policy.id], evaluations[policy.id][0].operating_point)
        if certificate := certificates[policy.id]:
            say(f"{policy.id}: {_describe(certificate)}")
    _show_verdicts(this, list(bundles.values()))
    if this.left_out:
        say()
        table(("left out", "why"), [(name, in_short(str(error))) for name, error in this.left_out.items()])
    say()
    names = {"report": REPORT, "settings": RUN_FILE, "policies": POLICIES, "battery": BATTERY, "bundle": BUNDLE}
    paths = {what: this.folder.path / name for what, name in names.items()}
    table(("what", "where"), [(what, path) for what, path in paths.items() if path.exists()])


def say_fitted_again(bundle: Bundle, evaluated: OperatingPoint) -> None:
    if (now := bundle.manifest.operating_point) != evaluated:
        again = shlex.join(["alora", "evaluate", f"artifact={bundle.folder}"])
        say(
            f"{bundle.policy.id}: its bundle was fitted again since, so the figures and the threshold above are not "
            f"the bundle's: it has {describe_operating_point(now)}; {again} measures it"
        )


def _describe(certificate: Certificate) -> str:
    caught = [control.caught for record in certificate.dtypes for control in record.controls]
    names = ", ".join(record.dtype for record in certificate.dtypes)
    return (
        f"KV identity certified in {names} on {len(certificate.lengths)} calls, "
        f"{sum(caught)} of {len(caught)} negative controls caught"
    )


def _show_verdicts(this: TrainingRun, bundles: Sequence[Bundle]) -> None:
    """The verdicts on the recipe's conversation, else on the first held-out row, from one pass."""
    row = LabelledConversation(this.conversation) if this.conversation else this.splits.measured(this.going[0].id)[1][0]
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
