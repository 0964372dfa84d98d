"""Drift and cross-fire on answers made by hand."""

import numpy as np
import pytest

from alora.config.schema import EvaluationSettings, FleetSettings
from alora.data.conversation import Conversation, LabelledConversation, Message
from alora.evaluation.battery_report import Member, report
from alora.policy import Policy
from alora.verdict import OperatingPoint

QUIET = EvaluationSettings(bootstrap=0)
POLICIES = {name: Policy(name, name.capitalize(), "") for name in ("a", "b", "c")}


def rows(*labels: dict[str, str]) -> list[LabelledConversation]:
    made = []
    for number, own in enumerate(labels):
        talk = Conversation(str(number), (Message("user", f"text {number}"),))
        made.append(LabelledConversation(talk, own, f"rows:{number}"))
    return made


def member(name: str, chances: list[float], threshold: float = 0.5, digest: str = "d") -> Member:
    """A policy that gives these probabilities."""
    chance_N = np.array(chances)
    return Member(
        POLICIES[name],
        OperatingPoint(1.0, threshold),
        digest,
        np.stack([np.log(chance_N), np.log(1 - chance_N)], axis=1),
    )


ROWS = rows(
    {"a": "violation"}, {"a": "violation"}, {"a": "ok"}, {"a": "ok", "b": "violation"}, {"b": "violation"}, {"b": "ok"}
)
GOOD_A, GOOD_B = [0.9, 0.8, 0.1, 0.2, 0.1, 0.1], [0.1, 0.7, 0.1, 0.9, 0.8, 0.2]


def test_who_fires_on_whose_positives():
    found = report([member("a", GOOD_A), member("b", GOOD_B)], None, ROWS, QUIET, FleetSettings())
    assert found.crossfire.fires == [[1.0, 0.5], [0.0, 1.0]]
    assert found.crossfire.elsewhere == [0.0, 0.25]
    assert found.regressed == ()
    assert [item.metrics.value("auroc") for item in found.evaluations] == [1.0, 1.0]
    assert [item.metrics.rows for item in found.evaluations] == [4, 3]


def test_a_policy_without_rows_has_a_column_and_nothing_else():
    found = report([member("a", GOOD_A), member("c", [0.9] * 6)], None, ROWS, QUIET, FleetSettings())
    assert [item.policy for item in found.evaluations] == ["a"]
    assert found.crossfire.fires[0][1] == 1.0
    assert found.as_dict()["crossfire"]["fires"][1] == [None, None]


def test_the_same_battery_has_not_drifted():
    now = [member("a", GOOD_A), member("b", GOOD_B)]
    found = report(now, now, ROWS, QUIET, FleetSettings(tolerance=0.0))
    assert [(d.state, d.flipped, d.regressed) for d in found.drifts] == [("unchanged", 0.0, ())] * 2
    assert all(set(d.changes.values()) == {0.0} for d in found.drifts)


@pytest.mark.parametrize(("tolerance", "regressed"), [(0.02, ("a",)), (0.9, ())])
def test_a_worse_adapter_regresses_beyond_the_tolerance_and_only_it(tolerance, regressed):
    worse = member("a", [0.9, 0.1, 0.8, 0.2, 0.1, 0.1], digest="other")
    now, then = [worse, member("b", GOOD_B)], [member("a", GOOD_A), member("b", GOOD_B)]
    found = report(now, then, ROWS, QUIET, FleetSettings(tolerance=tolerance))
    drift = found.drifts[0]
    assert found.regressed == regressed
    assert (drift.state, drift.flipped) == ("changed", 0.5)
    assert drift.changes == pytest.approx({"auroc": 0.5 - 1.0 + 0.0, "f1": -0.5}, abs=0.26)
    assert drift.changes["auroc"] < 0
    better = report(then, now, ROWS, QUIET, FleetSettings(tolerance=tolerance))
    assert better.regressed == ()


def test_a_moved_threshold_is_seen_though_the_ranking_is_the_same():
    moved = member("a", GOOD_A, threshold=0.85)
    found = report([moved], [member("a", GOOD_A)], ROWS, QUIET, FleetSettings())
    (drift,) = found.drifts
    assert drift.state == "changed"
    assert drift.changes["auroc"] == 0.0
    assert drift.regressed == ("f1",)
    assert report([moved], [member("a", GOOD_A)], ROWS, QUIET, FleetSettings(figures=["auroc"])).regressed == ()


def test_policies_that_come_and_go():
    found = report([member("a", GOOD_A)], [member("b", GOOD_B)], ROWS, QUIET, FleetSettings())
    assert [(d.policy, d.state, d.regressed) for d in found.drifts] == [("a", "new", ()), ("b", "gone", ("gone",))]
    assert found.regressed == ("b",)


def test_what_the_rows_cannot_tell_of_a_changed_policy_has_not_passed():
    harmless = rows(*[{"a": "ok"}] * 6)
    old, new = member("a", [0.1] * 6), member("a", [0.9] * 6, digest="e")  # fires on everything now
    found = report([new], [old], harmless, QUIET, FleetSettings())
    assert found.drifts[0].regressed == ("auroc not measurable",)
    assert found.drifts[0].flipped == 1.0
    assert report([old], [old], harmless, QUIET, FleetSettings()).regressed == ()
    nothing = rows(*[{"b": "ok"}] * 6)
    (drift,) = report([new], [old], nothing, QUIET, FleetSettings()).drifts
    assert (drift.state, drift.regressed) == ("changed", ("no row is labelled for it",))
    assert report([old], [old], nothing, QUIET, FleetSettings()).regressed == ()
