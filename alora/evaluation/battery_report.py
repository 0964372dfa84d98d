"""A battery as a whole: every policy's figures, its drift since the last version, and who fires on whose positives."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from alora.config.schema import EvaluationSettings, FleetSettings
from alora.data.conversation import LabelledConversation
from alora.evaluation.calibration import all_probabilities
from alora.evaluation.metrics import Flags, Floats
from alora.evaluation.paired import paired_auroc
from alora.evaluation.predict import Predictions, labels_of
from alora.evaluation.records import Evaluation
from alora.evaluation.tables import evaluate
from alora.policy import Policy
from alora.verdict import OperatingPoint


@dataclass(frozen=True)
class Member:
    """One policy of a battery with its label logits on ALL rows, labelled for it or not."""

    policy: Policy
    point: OperatingPoint
    digest: str
    logits_NL: Floats

    @property
    def probability_NL(self) -> Floats:
        return all_probabilities(self.logits_NL, self.point.temperature, self.point.bias)

    @property
    def fired_N(self) -> Flags:
        return self.probability_NL[:, 0] >= self.point.threshold

    def labelled(self, rows: Sequence[LabelledConversation]) -> Flags:
        return np.array([self.policy.id in row.labels for row in rows], dtype=bool)

    def predictions(self, rows: Sequence[LabelledConversation]) -> Predictions:
        """Its answers on the rows that are labelled for it."""
        return Predictions(self.policy, self.logits_NL[self.labelled(rows)], labels_of(self.policy, rows))


@dataclass(frozen=True)
class PolicyChange:
    """One policy against its last version on the same rows: new minus old.

    ``state`` is unchanged (the same weights and operating point), changed, new, or gone. ``flipped`` is the share of
    its rows whose verdict is another one; ``p_delong`` says whether the AUROC differs by more than chance.
    ``regressed`` names the figures that fell by more than the tolerance and, of a policy that changed, those that
    these rows cannot measure. A policy that is gone has regressed.
    """

    policy: str
    state: str
    changes: Mapping[str, float | None] = field(default_factory=dict)
    flipped: float | None = None
    p_delong: float | None = None
    regressed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Crossfire:
    """``fires[i][j]``: the share of policy i's positives on which policy j fires; its own recall on the diagonal.
    ``elsewhere[j]`` is how often j fires on rows that are not its labelled positives: the rate to compare the column
    with. A row that violates two policies, and is labelled for one, counts here too. None where there are no such
    rows."""

    policies: list[str]
    fires: list[list[float | None]]
    elsewhere: list[float | None]


@dataclass(frozen=True)
class FleetReport:
    """The report on a battery; ``regressed`` decides the exit code."""

    evaluations: tuple[Evaluation, ...]
    crossfire: Crossfire
    drifts: tuple[PolicyChange, ...] = ()

    @property
    def regressed(self) -> tuple[str, ...]:
        return tuple(drift.policy for drift in self.drifts if drift.regressed)

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "evaluations": [evaluation.as_dict() for evaluation in self.evaluations],
            "drifts": [asdict(drift) for drift in self.drifts],
            "regressed": list(self.regressed),
            "crossfire": asdict(self.crossfire),
        }


def report(
    members: Sequence[Member],
    before: Sequence[Member] | None,
    rows: Sequence[LabelledConversation],
    evaluation: EvaluationSettings,
    settings: FleetSettings,
    trained_on: Mapping[str, int] = MappingProxyType({}),
) -> FleetReport:
    """The report on ``members``; ``before`` is the battery's last version on the same rows, None without one.
    ``trained_on`` counts the rows that a policy's adapter knows. A policy that no row is labelled for has no figures,
    and is in the cross-fire's columns alone."""
    evaluations = tuple(
        evaluate(
            member.predictions(rows),
            member.point,
            evaluation,
            method="adapter",
            adapter_digest=member.digest,
            trained_on=trained_on.get(member.policy.id, 0),
        )
        for member in members
        if member.labelled(rows).any()
    )
    now, old = ({member.policy.id: member for member in battery} for battery in (members, before or ()))
    drifts = (
        ()
        if before is None
        else (_drift(name, now.get(name), old.get(name), rows, evaluation, settings) for name in {**now, **old})
    )
    return FleetReport(evaluations, crossfire(members, rows), tuple(drifts))


def crossfire(members: Sequence[Member], rows: Sequence[LabelledConversation]) -> Crossfire:
    """Who fires on whose positives."""
    positives = [
        np.array([row.labels.get(member.policy.id) == member.policy.positive for row in rows], dtype=bool)
        for member in members
    ]
    fired = [member.fired_N for member in members]
    shares = [[_share(other_N[own_N]) for other_N in fired] for own_N in positives]
    elsewhere = [_share(fired_N[~own_N]) for fired_N, own_N in zip(fired, positives, strict=True)]
    return Crossfire([member.policy.id for member in members], shares, elsewhere)


def _drift(
    name: str,
    member: Member | None,
    old: Member | None,
    rows: Sequence[LabelledConversation],
    evaluation: EvaluationSettings,
    settings: FleetSettings,
) -> PolicyChange:
    if member is None:
        return PolicyChange(name, "gone", regressed=("gone",))
    if old is None:
        return PolicyChange(name, "new")
    own_N = member.labelled(rows)
    mine, theirs = ((one.digest, one.point.temperature, one.point.threshold, one.point.bias) for one in (member, old))
    same = mine == theirs
    state = "unchanged" if same else "changed"
    if not own_N.any():
        return PolicyChange(name, state, regressed=() if same else ("no row is labelled for it",))
    both = [(one.predictions(rows), one.point) for one in (member, old)]
    new, last = (evaluate(*one, evaluation, method="adapter").metrics.figures for one in both)
    changes = {
        figure: None if (a := new[figure].value) is None or (b := last[figure].value) is None else a - b
        for figure in settings.figures
    }
    positive_N, p_delong = both[0][0].positive_N, None
    if positive_N.any() and not positive_N.all():
        scores = (predicted.probability_NL(point)[:, 0] for predicted, point in both)
        p_delong = finite(paired_auroc(positive_N, *scores, resamples=0).p_delong)
    fallen = [name for name, change in changes.items() if change is not None and change < -settings.tolerance]
    if not same:
        fallen += [f"{name} not measurable" for name, change in changes.items() if change is None]
    verdicts_N, before_N = (predicted.verdicts_N(point) for predicted, point in both)
    return PolicyChange(name, state, changes, _share(verdicts_N != before_N), p_delong, tuple(fallen))


def _share(flags_N: Flags) -> float | None:
    return float(flags_N.mean()) if len(flags_N) else None


def finite(value: Any) -> Any:
    """Plain data without NaN, which JSON does not have, as None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
