"""Which keys a command line sets."""

from hydra.core.override_parser.overrides_parser import OverridesParser

from alora.config.choices import keys_given


def test_the_keys_that_a_command_line_sets_by_themselves_or_in_a_mapping():
    given = ["data={columns: {label: x}, test: null}", "++data.label_map.a=b", "data.role_map={}", "~policy.labels"]
    assert keys_given(OverridesParser.create().parse_overrides(given)) == {
        "data.columns.label", "data.test", "data.label_map.a", "data.role_map", "policy.labels"
    }  # fmt: skip
