"""Notes and findings as they are printed."""

from alora.data.findings import SHOWN, as_lines


def test_notes_of_odd_keys_hide_no_frequent_one():
    notes = {**{f"key {number} is left out": 1 for number in range(1000)}, "role 'Bot' is read as assistant": 40}
    lines = as_lines(notes)
    assert lines[0] == "note: role 'Bot' is read as assistant (40 times)"
    assert lines[-1] == f"note: ... and {1001 - SHOWN} more notes"
    assert len(lines) == SHOWN + 1
    few = dict(list(notes.items())[-SHOWN:])
    assert as_lines(few) == [f"note: key {number} is left out" for number in range(1001 - SHOWN, 1000)] + lines[:1]
