"""A battery as a whole: every policy's figures, its drift since the last version, and who fires on whose positives."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alora.config.schema import EvaluationSettings, FleetSettings
from alora.data.conversation import LabelledConversation
from alora.evaluation.calibration import all_probabilities, positive_probability, verdicts
from alora.evaluation.paired import paired_auroc
from alora.evaluation.predict import Predictions, labels_of
from alora.evaluation.records import Evaluation
from alora.evaluation.resampling import Flags, Floats
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
    def probability_N(self) -> Floats:
        return positive_probability(self.logits_NL, self.point.temperature, self.point.bias)

    @property
    def fired_N(self) -> Flags:
        return self.probability_N >= self.point.threshold

    @property
    def verdict_N(self) -> NDArray[np.str_]:
        probability_NL = all_probabilities(self.logits_NL, self.point.temperature, self.point.bias)
        return np.array(self.policy.labels)[verdicts(probability_NL, self.point.threshold)]

    def predictions(self, rows: Sequence[LabelledConversation]) -> Predictions:
        """Its answers on the rows that are labelled for it."""
        own_N = labelled(self.policy, rows)
        return Predictions(self.policy, self.logits_NL[own_N], labels_of(self.policy, rows))


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
    """``fires_PP[i, j]``: the share of policy i's positives on which policy j fires; its own recall on the diagonal.

    ``elsewhere_P[j]`` is how often j fires on rows that are not its labelled positives: the rate to
    compare the column with. A row that violates two policies, and is labelled for one, counts here too.
    """

    policies: tuple[str, ...]
    fires_PP: Floats
    elsewhere_P: Floats


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
        fires, elsewhere = self.crossfire.fires_PP.tolist(), self.crossfire.elsewhere_P.tolist()
        return {
            "schema_version": 1,
            "evaluations": [evaluation.as_dict() for evaluation in self.evaluations],
            "drifts": [asdict(drift) for drift in self.drifts],
            "regressed": list(self.regressed),
            "crossfire": finite({"policies": self.crossfire.policies, "fires": fires, "elsewhere": elsewhere}),
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
    ``trained_on`` counts the rows that a policy's adapter knows.

    A policy that no row is labelled for has no figures, and is in the cross-fire's columns alone.
    """
    evaluations = {
        member.policy.id: evaluate(
            member.predictions(rows),
            member.point,
            evaluation,
            method="adapter",
            adapter_digest=member.digest,
            trained_on=trained_on.get(member.policy.id, 0),
        )
        for member in members
        if labelled(member.policy, rows).any()
    }
    drifts = () if before is None else tuple(_drifts(members, before, rows, evaluation, settings))
    return FleetReport(tuple(evaluations.values()), crossfire(members, rows), drifts)


def crossfire(members: Sequence[Member], rows: Sequence[LabelledConversation]) -> Crossfire:
    """Who fires on whose positives; NaN where a policy has no labelled positive."""
    positives = [
        np.array([row.labels.get(member.policy.id) == member.policy.positive for row in rows], dtype=bool)
        for member in members
    ]
    fired = [member.fired_N for member in members]
    shares = [[_share(other_N[own_N]) for other_N in fired] for own_N in positives]
    elsewhere = [_share(fired_N[~own_N]) for fired_N, own_N in zip(fired, positives, strict=True)]
    names = tuple(member.policy.id for member in members)
    return Crossfire(names, np.array(shares).reshape(len(names), len(names)), np.array(elsewhere))


def labelled(policy: Policy, rows: Sequence[LabelledConversation]) -> Flags:
    return np.array([policy.id in row.labels for row in rows], dtype=bool)


def _drifts(
    members: Sequence[Member],
    before: Sequence[Member],
    rows: Sequence[LabelledConversation],
    evaluation: EvaluationSettings,
    settings: FleetSettings,
) -> list[PolicyChange]:
    old = {member.policy.id: member for member in before}
    changes = []
    for member in members:
        name = member.policy.id
        if name not in old:
            changes.append(PolicyChange(name, "new"))
        elif labelled(member.policy, rows).any():
            changes.append(_drift(member, old[name], rows, evaluation, settings))
        else:
            state = _state(member, old[name])
            changes.append(
                PolicyChange(name, state, regressed=("no row is labelled for it",) if state == "changed" else ())
            )
    known = {member.policy.id for member in members}
    return changes + [PolicyChange(name, "gone", regressed=("gone",)) for name in old if name not in known]


def _drift(
    member: Member,
    old: Member,
    rows: Sequence[LabelledConversation],
    evaluation: EvaluationSettings,
    settings: FleetSettings,
) -> PolicyChange:
    own_N = labelled(member.policy, rows)
    now, then = (evaluate(item.predictions(rows), item.point, evaluation, method="adapter") for item in (member, old))
    changes: dict[str, float | None] = {}
    for name in settings.figures:
        new, last = now.metrics.value(name), then.metrics.value(name)
        changes[name] = None if new is None or last is None else new - last
    positive_N = member.predictions(rows).positive_N
    p_delong = None
    if positive_N.any() and not positive_N.all():
        scores = (member.probability_N[own_N], old.probability_N[own_N])
        p_delong = paired_auroc(positive_N, *scores, resamples=0).p_delong
    state = _state(member, old)
    fallen = [name for name, change in changes.items() if change is not None and change < -settings.tolerance]
    if state == "changed":
        fallen += [f"{name} not measurable" for name, change in changes.items() if change is None]
    return PolicyChange(
        policy=member.policy.id,
        state=state,
        changes=changes,
        flipped=_share((member.verdict_N != old.verdict_N)[own_N]),
        p_delong=None if p_delong is None or np.isnan(p_delong) else p_delong,
        regressed=tuple(fallen),
    )


def _state(member: Member, old: Member) -> str:
    mine, theirs = ((one.digest, one.point.temperature, one.point.threshold, one.point.bias) for one in (member, old))
    return "unchanged" if mine == theirs else "changed"


def _share(flags_N: Flags) -> float:
    return float(flags_N.mean()) if len(flags_N) else float("nan")


def finite(value: Any) -> Any:
    """Plain data without NaN, which JSON does not have, as None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
