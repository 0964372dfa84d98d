"""Where alora's own configs and recipes lie, and how the paths of a recipe become absolute."""

import copy
import difflib
import os
import re
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

from alora.config.schema import Recipe
from alora.config.setting import settings_of
from alora.errors import ConfigError

DEFAULT_BASE = "smollm2"  # where a base is needed and none is named
HUB_ID = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>\w[\w./-]*))?")
PLAIN = "plain"  # base.chat_template: turns under the names of their roles
GENERATE = "generate"  # data.train: rows from the policy's text, by the model that judge names
_NAMES = (("data.train", GENERATE), ("base.chat_template", PLAIN))  # and no files
POLICY_PLACE = "%policy%"  # in the name of a data source: one file per policy of a battery


def configs_folder() -> Path:
    """The Hydra tree: inside the package when it was installed from a wheel, else next to it in the checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def recipes_folder() -> Path:
    """The recipes that come with alora, with their policies and rows."""
    return (configs_folder() / "recipe").resolve()


def absolute_paths(recipe: Recipe, verb: str, roots: Sequence[Path]) -> Recipe:
    """A copy of ``recipe`` in which every path is absolute.

    An input is looked up as given, then in each of ``roots`` (the working folder first); what ``verb`` writes lies in
    the first root. ``hub:...``, ``-`` and hub ids of bases stay as they are."""
    result = copy.deepcopy(recipe)
    problems: list[str] = []
    for key, _, limits in settings_of(Recipe):
        if limits.read_by is None:
            continue
        *sections, name = key.split(".")
        section, needed = reduce(getattr, sections, result), verb in limits.read_by
        on_hub = verb == "score" and key in ("artifact", "bundles")
        given = getattr(section, name)
        items = given if isinstance(given, list) else [given]
        found = [_input(key, item, needed, on_hub, roots, problems) for item in items if item is not None]
        if found:
            setattr(section, name, found if isinstance(given, list) else found[0])
    if result.base.source is None and verb in ("check", "train", "compare"):
        result.base.source = DEFAULT_BASE
    result.base.source = _base(result.base.source, roots, problems)
    result.run_dir = _output(result.run_dir, roots[0])
    if result.output is not None:
        result.output = _output(result.output, roots[0])
    if problems:
        raise ConfigError("\n".join(problems))
    return result


def _input(key: str, given: str, needed: bool, on_hub: bool, roots: Sequence[Path], problems: list[str]) -> str:
    if given == "-" or given.startswith("hub:") or (key, given) in _NAMES:
        return given
    found = _find(given, roots)
    if found is not None:
        return str(found)
    if on_hub and HUB_ID.fullmatch(given) and not any((root / given).parent.is_dir() for root in roots):
        return given
    if needed:
        looked = dict.fromkeys(root / expanded(given) for root in roots)
        close = _close(given, roots)
        meant = f"did you mean {close!r}?" if close else f"looked for {', '.join(map(str, looked))}"
        meant = "download it, and give the file" if "://" in given else meant
        meant = f"write {key}={given[7:]}" if given.startswith("file://") else meant
        meant = f"for none, write {key}=null" if given.lower() in ("none", "nil") else meant
        said = "data" if key == "conversation" and not given.endswith(".json") else key  # as the user wrote it
        problems.append(f"{said}: there is no {given!r}; {meant}")
    return _output(given, roots[0])


def _close(given: str, roots: Sequence[Path]) -> str | None:
    """The name next to ``given`` that it may be a slip for."""
    folder, name = os.path.split(given.rstrip("/"))
    for root in roots:
        try:
            names = [entry.name for entry in (root / expanded(folder)).iterdir()]
        except (OSError, ValueError):
            continue
        if close := difflib.get_close_matches(name, names, n=1, cutoff=0.75):
            return os.path.join(folder, close[0])  # noqa: PTH118  (as it was written, with its ./)
    return None


def _find(given: str, roots: Sequence[Path]) -> Path | None:
    """The first path that is there; of a name with a gap for the policy's id, which is several files, its folder."""
    for root in roots:
        path = root / expanded(given)
        try:
            if (path.parent if POLICY_PLACE in path.name else path).exists():
                return path.absolute()
        except (OSError, ValueError):  # a name that no file can have: too long, or with a NUL
            return None
    return None


def _base(given: str | None, roots: Sequence[Path], problems: list[str]) -> str | None:
    if given is None or given == DEFAULT_BASE:
        return given
    found = _find(given, roots)
    gguf = is_gguf(given)
    if found is not None and (found.is_dir() or gguf):
        return str(found)
    if gguf or given.startswith(("/", "./", "../", "~")):
        what = "file" if gguf else "folder"
        problems.append(
            f"base.source: there is no {what} {given!r}; give a model folder, a GGUF file, a hub id, or choose "
            f"base={DEFAULT_BASE}"
        )
    return given


def is_gguf(source: str) -> bool:
    """Whether ``base.source`` names a GGUF file rather than a folder or a hub id."""
    return source.lower().endswith(".gguf") and not Path(source).is_dir()


def _output(given: str, root: Path) -> str:
    return given if given == "-" else str((root / expanded(given)).absolute())


def expanded(given: str) -> Path:
    """``given`` with the home that ``~`` stands for, where there is one."""
    return Path(os.path.expanduser(given))  # noqa: PTH111  (Path.expanduser raises for a user who does not exist)
