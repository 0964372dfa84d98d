"""A command's settings over those of the run that its artifact belongs to."""

from alora.config.saved import over
from alora.config.schema import ColumnSettings, DataSettings

RUN = DataSettings(
    test="run.jsonl",
    label_map={"yes": "violation", "no": "ok"},
    skip_media=True,
    columns=ColumnSettings(label="human", group="customer"),
)


def test_what_the_command_leaves_open_is_the_runs_key_by_key():
    given = DataSettings(
        test="new.jsonl", label_map={"no": "violation", "bad": "violation"}, columns=ColumnSettings(id="uid")
    )
    found = over(given, RUN, frozenset(), "data")
    assert found.test == "new.jsonl"
    assert found.skip_media
    assert found.label_map == {"yes": "violation", "no": "violation", "bad": "violation"}
    assert found.columns == ColumnSettings(label="human", group="customer", id="uid")


def test_a_default_that_is_spelt_out_counts():
    spelt = frozenset({"data.test", "data.columns.label", "data.label_map", "data.skip_media"})
    found = over(DataSettings(), RUN, spelt, "data")
    assert found == DataSettings(columns=ColumnSettings(group="customer"))
