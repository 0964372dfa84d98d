"""Seven planted faults, made of the very adapter and base at hand, that the check must find.

A check that passes says nothing until it is seen to fail. Each control runs the same call as the honest pair with
one fault in it, and is *caught* when :func:`alora.identity.equality.compare` reports a finding of the kind that this
fault must cause.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from alora.identity.capture import Call, Capture, Site, capture
from alora.identity.certificate import ControlRecord
from alora.identity.equality import ACTIVATION, PREFIX, KVFinding, bits, compare

SMALL = 1e-4


@dataclass(frozen=True)
class Models:
    """The adapter as it is (``alora``) and as a plain LoRA of the same weights, on twins of one base."""

    alora: Any
    plain: Any


@dataclass(frozen=True)
class Control:
    """One fault: ``run`` gives the faulty capture of a call; findings of ``kinds`` catch it, the surest first."""

    name: str
    kinds: tuple[str, ...]
    run: Callable[[Models, Call], Capture]


def standard_lora(models: Models, call: Call) -> Capture:
    """The same weights without activation: adapted from token 0."""
    return capture(models.plain, call)


def faint_lora(models: Models, call: Call) -> Capture:
    """Standard LoRA with B scaled by 1e-4: too faint for a tolerance to see."""
    with _scaled_b(models.plain, SMALL):
        return capture(models.plain, call)


def early_activation(models: Models, call: Call) -> Capture:
    """Activation one token early: the last prefix token is adapted."""
    return capture(models.alora, call, alora_offsets=call.offsets(shift=-1))


def late_activation(models: Models, call: Call) -> Capture:
    """Activation one token late: the first suffix token is the base's."""
    return capture(models.alora, call, alora_offsets=call.offsets(shift=1))


def one_ulp(models: Models, call: Call) -> Capture:
    """The honest capture with the lowest bit of one element flipped: V of the middle layer, last prefix token."""
    honest = capture(models.alora, call, alora_offsets=call.offsets())
    site = Site(max(site.layer for site in honest.sites) // 2, "V")
    touched = honest.sites[site].clone()
    element = (len(call.activation_B) - 1, call.activation_B[-1] - 1, *(0 for _ in touched.shape[2:]))
    bits(touched)[element] ^= 1
    return replace(honest, sites={**honest.sites, site: touched})


def zero_b(models: Models, call: Call) -> Capture:
    """B = 0, as every adapter is before its first step."""
    with _scaled_b(models.alora, 0.0):
        return capture(models.alora, call, alora_offsets=call.offsets())


def silently_off(models: Models, call: Call) -> Capture:
    """What PEFT does without a warning when it does not find the invocation tokens: base answers."""
    return capture(models.alora, call, alora_offsets=[None] * len(call.activation_B))


# A leak too faint for the dtype to hold at some site shows as an adapter without effect there, so both kinds count.
CONTROLS: Sequence[Control] = (
    Control("standard LoRA", (PREFIX,), standard_lora),
    Control("LoRA with B scaled by 1e-4", (PREFIX, ACTIVATION), faint_lora),
    Control("activation one token early", (PREFIX,), early_activation),
    Control("activation one token late", (ACTIVATION,), late_activation),
    Control("one element changed by 1 ulp", (PREFIX,), one_ulp),
    Control("B = 0", (ACTIVATION,), zero_b),
    Control("adapter silently off", (ACTIVATION,), silently_off),
)


def run_controls(
    models: Models, calls: Sequence[Call], bases: Mapping[str, Capture], reached: Collection[Site]
) -> tuple[ControlRecord, ...]:
    """Plant each fault in one call after another until it is caught; ``bases`` holds the base's captures by call."""
    return tuple(plant(control, models, calls, bases, reached) for control in CONTROLS)


def plant(
    control: Control, models: Models, calls: Sequence[Call], bases: Mapping[str, Capture], reached: Collection[Site]
) -> ControlRecord:
    """Run one control on one call after another until a finding of its first kind catches it."""
    others: list[KVFinding] = []
    for call in calls:
        findings = compare(call, bases[call.name], control.run(models, call), reached)
        for finding in findings:
            if finding.check == control.kinds[0]:
                return ControlRecord(control.name, True, _detail(finding))
        others += [finding for finding in findings if finding.check in control.kinds]
    return ControlRecord(control.name, bool(others), _detail(others[0]) if others else "none")


def _detail(finding: KVFinding) -> str:
    return f"{finding.check} check, {finding}"


@contextmanager
def _scaled_b(model: torch.nn.Module, factor: float) -> Iterator[None]:
    """Scale every B matrix of a PeftModel inside a ``with``, and put the very same values back after it."""
    saved = [(parameter, parameter.data) for name, parameter in model.named_parameters() if ".lora_B." in name]
    try:
        for parameter, values in saved:
            parameter.data = values * factor
        yield
    finally:
        for parameter, values in saved:
            parameter.data = values
