"""The plugin as a user meets it: their own test file, plain ``pytest``, one adapter that holds and ones that do not."""

import sys
from pathlib import Path

import pytest

from alora.identity.pytest_plugin import assert_kv_identity
from tests.integration.identity.on_disk import load, write_adapter_for
from tests.integration.identity.subjects import toy_base, toy_prompts, write_adapter
from tests.toy_recipe import toy_base_folder

pytest_plugins = ["pytester"]

USER_TESTS = """
from alora.config.schema import IdentitySettings
from alora.identity.pytest_plugin import assert_kv_identity

def test_by_fixture(alora_identity):
    certificate = alora_identity({good!r}, base={base!r})
    assert all(control.caught for record in certificate.dtypes for control in record.controls)

def test_by_function():
    assert assert_kv_identity({good!r}, {base!r}, settings=IdentitySettings(dtypes=["float32"])).passed

def test_untrained(alora_identity):
    alora_identity({zero!r}, base={base!r}, settings=IdentitySettings(dtypes=["float32"]))

def test_plain_lora(alora_identity):
    alora_identity({lora!r}, base={base!r})
"""


def test_in_a_users_repository(pytester: pytest.Pytester):
    folders = _folders(pytester.path)
    pytester.makepyfile(test_adapters=USER_TESTS.format(**{name: str(path) for name, path in folders.items()}))
    result = pytester.runpytest_inprocess("-W", "error", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*breaks KV identity with base*",
            "*float32: activation check, short prefix, row 0, layer 0 K, position 3: no difference where one must be*",
            "*is a plain LoRA: its adapter_config.json has no alora_invocation_tokens*",
        ]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_the_plugin_costs_other_test_suites_nothing(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        import sys

        def test_nothing_heavy(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("alora")
            assert "torch" not in sys.modules and "transformers" not in sys.modules
        """
    )
    pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider").assert_outcomes(passed=1)
    assert "torch" in sys.modules  # here it is: the check above looked into another process


def test_own_prompts_and_a_base_in_memory(tmp_path: Path):
    base = toy_base("gemma3")
    certificate = assert_kv_identity(write_adapter(base, tmp_path / "adapter"), base, toy_prompts())
    assert certificate.passed


def _folders(root: Path) -> dict[str, Path]:
    base_folder = toy_base_folder(root / "base")
    base = load(base_folder)
    kinds = {"good": "alora", "zero": "zero", "lora": "lora"}
    return {"base": base_folder, **{name: write_adapter_for(base, root / name, kind) for name, kind in kinds.items()}}
