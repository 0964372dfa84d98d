"""No circle of imports, lazy and type-only ones included: a reader can take the files in one order."""

import logging
import sys
from pathlib import Path

import grimp

import alora


def circles(package):
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    return sorted(
        (module, imported)
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if graph.chain_exists(importer=imported, imported=module)
    )


def test_alora_has_no_circle():
    assert circles("alora") == []


def test_a_lazy_and_a_type_only_import_close_a_circle(tmp_path, monkeypatch):
    package = tmp_path / "planted_circle"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("def late():\n    from planted_circle import two\n")
    (package / "two.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from planted_circle import one\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert circles("planted_circle") == [
        ("planted_circle.one", "planted_circle.two"),
        ("planted_circle.two", "planted_circle.one"),
    ]
    assert "planted_circle.one" not in sys.modules  # read, never run


def test_unit_tests_mirror_the_package_or_are_listed():
    root = Path(__file__).parents[2]
    listed = (root / "tests/README.md").read_text()
    for test in (root / "tests/unit").rglob("test_*.py"):
        place = test.relative_to(root / "tests/unit")
        module = root / "alora" / place.parent / place.name.removeprefix("test_")
        name = f"`{test.relative_to(root / 'tests')}`"
        assert module.exists() != (name in listed), f"{name}: no module of its own, and not in tests/README.md, or both"


def test_a_shell_completes_the_public_names():
    assert set(alora.__all__) <= set(dir(alora))


def test_a_faster_kernel_that_is_not_installed_is_no_alarm(caplog):
    assert alora.Verdict
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    caplog.set_level(logging.WARNING, logger.name)
    logger.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s.", ImportError("kernels"))
    logger.warning("another fault")
    assert caplog.messages == ["another fault"]
