"""Which columns a row has: those that the settings name, or the usual ones."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from alora.config.paths import POLICY_PLACE
from alora.config.schema import ColumnSettings
from alora.findings import Findings

# Where no column "messages" is and none is named: lists of messages, then texts, whose names say who speaks.
LISTS = ("conversations", "conversation")
DETECTED = (*LISTS, "system,prompt,response", "prompt,response", "prompt,completion",
            "instruction,output", "question,answer", "user,assistant", "text", "prompt")  # fmt: skip


def detect_columns(
    columns: ColumnSettings, row: Mapping[str, Any], findings: Findings, first: bool = True
) -> ColumnSettings:
    """``columns`` under the names that this row has: with other capitals, or, where a column is missing, its usual
    name.

    The settings name the columns of one source, and other sources may differ. A note says what was done. Text columns
    are detected only where no column is named, and in the ``first`` row alone: later they may be anything.
    """
    own = {name.strip().lower(): name for name in row if isinstance(name, str)}
    changes, known = {}, DETECTED if first and columns.messages == ColumnSettings.messages else LISTS
    for key in ("messages", "label", "labels", "id"):
        named, usual = getattr(columns, key), getattr(ColumnSettings, key)
        if POLICY_PLACE in named:  # a column for each policy
            continue
        forms = [named, usual, *(known if key == "messages" else ())]
        form = next((form for form in forms if all(name in own for name in form.lower().split(","))), None)
        if named not in row and form is not None:
            actual = ",".join(own[name] for name in form.lower().split(","))
            changes |= {key: actual} if actual != named else {}
    for key, name in changes.items():
        are = "are" if key.endswith("s") else "is"
        findings.notes[f"{key} {are} read from data.columns.{key}={name}"] += 1
    return replace(columns, **changes)
