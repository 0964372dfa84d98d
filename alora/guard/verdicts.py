"""From a reading to a verdict, and its line in the log: who asked and what was found, never the text."""

import logging
import re
from collections.abc import Iterable
from typing import Literal

from alora.errors import AdapterError
from alora.guard.reader import Reading, Served
from alora.verdict import make_verdict
from alora.wire.native import Action, GuardRequest, PolicyVerdict, Status

logger = logging.getLogger("alora.guard")
_ODD = re.compile(r"[^\w.:@+-]")  # in an id, which others choose: a line keeps its fields


def show_log() -> None:
    """Print the guard's lines where the server's logging does not."""
    logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)


def verdict_of(item: Served, reading: Reading, request: GuardRequest) -> PolicyVerdict:
    """What a reading says at the policy's threshold, or that it says nothing."""
    if reading.error is not None:
        return unanswered(item, "failed", f"{reading.error}; on_failure {request.on_failure}", request)
    try:
        verdict = make_verdict(item.policy, reading.logits, item.calibration, item.digest)
    except AdapterError as error:  # not finite, or not one value per label
        return unanswered(item, "failed", f"{error}; on_failure {request.on_failure}", request)
    return PolicyVerdict(
        policy=item.policy.id,
        status="ok",
        flagged=verdict.violated,
        action=_reported(item),
        label=verdict.label,
        probability=verdict.probability,
        threshold=verdict.threshold,
        probabilities=verdict.probabilities,
        adapter=item.name,
    )


def unanswered(item: Served, status: Status, why: str, request: GuardRequest) -> PolicyVerdict:
    """The verdict of a policy that was not read, by the request's ``on_failure``."""
    closed = request.on_failure == "closed" and status != "skipped"
    return PolicyVerdict(
        policy=item.policy.id, status=status, flagged=closed, action=_reported(item), adapter=item.name, reason=why
    )


def _reported(item: Served) -> Literal["block", "flag"]:
    return "block" if item.action == "block" else "flag"


def write(request: GuardRequest, verdicts: Iterable[PolicyVerdict], action: Action | None = None) -> None:
    """A line for each flagged verdict; ``action`` in place of the reported one."""
    for one in verdicts:
        if one.flagged:
            said = f"{one.probability:.4f}" if one.probability is not None else one.status
            logger.info(
                "flagged request=%s user=%s policy=%s action=%s adapter=%s probability=%s",
                *(_ODD.sub("_", word) for word in (request.answer_id, request.caller or "-")),
                *(one.policy, action or one.action, one.adapter, said),
            )
