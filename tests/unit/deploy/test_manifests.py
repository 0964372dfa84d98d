"""deploy/ against the schemas of Kubernetes, offline; what it names must exist."""

import configparser
import copy
import re
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from alora.cli import VERBS
from alora.config.compose import load_recipe
from alora.config.schema import ServingSettings
from alora.version import __version__

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
KUBERNETES = "1.33"
ENDING_S = 10  # in which a server ends its engine
# Kinds that a cluster knows by their own definitions, and checks itself.
CUSTOM = ("HTTPRoute", "BackendTrafficPolicy", "InferencePool", "LLMInferenceService")
OVERLAYS = ("base", "overlays/gateway", "overlays/inferencepool", "overlays/kserve")


def documents(folder: Path) -> list[dict[str, Any]]:
    """What kustomize would make of a folder that has resources alone, without images' tags."""
    found = []
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        place = (folder / name).resolve()
        found += documents(place) if place.is_dir() else list(yaml.safe_load_all(place.read_text()))
    return found


EVERYTHING = {
    f"{overlay}: {document['kind']}": document for overlay in OVERLAYS for document in documents(DEPLOY / overlay)
}


@pytest.mark.parametrize("name", [name for name in EVERYTHING if name.partition(": ")[2] not in CUSTOM])
def test_every_manifest_fits_its_schema(name):
    kubernetes_validate.validate(EVERYTHING[name], KUBERNETES, strict=True)


def test_a_misspelt_field_is_found():
    wrong = copy.deepcopy(EVERYTHING["base: Deployment"])
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = 1
    with pytest.raises(Exception, match="readinesProbe"):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def pod(name: str) -> dict[str, Any]:
    template = EVERYTHING[name]["spec"]["template"]
    return template.get("spec") or template


def container(name: str) -> dict[str, Any]:
    return pod(name)["containers"][0]


CONTAINERS = ("base: Deployment", "overlays/kserve: LLMInferenceService")


@pytest.mark.parametrize("name", CONTAINERS)
def test_alora_takes_every_argument(name, tmp_path):
    own = container(name)
    verb, *settings = own["args"]
    assert verb in VERBS
    folders = {"/models/": tmp_path / "models", "/mnt/models": tmp_path / "models/base"}
    for folder in ("battery", "base"):
        (tmp_path / "models" / folder).mkdir(parents=True)
    for there, here in folders.items():
        settings = [item.replace(there, f"{here}/") for item in settings]
    recipe = load_recipe(verb, settings, print)
    assert (recipe.serving.host, recipe.serving.port) == ("0.0.0.0", 8000)
    mounts = {mount["mountPath"] for mount in own["volumeMounts"]} | {"/mnt/models"}  # the last is KServe's
    paths = [item.partition("=")[2] for item in own["args"] if "=/" in item]
    assert len(paths) == 2
    assert all(any(path.startswith(mount) for mount in mounts) for path in paths)


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_pod_has_time_to_answer_what_is_under_way(name):
    wait, drain = container(name)["lifecycle"]["preStop"]["sleep"]["seconds"], ServingSettings().drain_s
    assert pod(name)["terminationGracePeriodSeconds"] >= wait + drain + ENDING_S


def test_so_has_a_service_of_systemd(tmp_path):
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(DEPLOY / "systemd" / "alora-guard.service")
    service = unit["Service"]
    assert int(service["TimeoutStopSec"]) >= ServingSettings().drain_s + ENDING_S
    assert (service["KillMode"], service["Restart"]) == ("mixed", "always")
    program, verb, *settings = shlex.split(service["ExecStart"])
    for folder in ("battery", "base"):
        (tmp_path / folder).mkdir()
    settings = [setting.replace("/srv/alora", str(tmp_path)) for setting in settings]
    assert (Path(program).name, load_recipe(verb, settings, print).serving.port) == ("alora", 8000)


def environment() -> dict[str, str]:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    pairs = [word for line in re.findall(r"^ENV (.*)$", text, re.MULTILINE) for word in shlex.split(line)]
    found = dict(pair.split("=", 1) for pair in pairs)
    for name in CONTAINERS:
        found |= {item["name"]: item.get("value", "") for item in container(name)["env"]}
    return found


def test_the_probe_asks_what_the_guard_serves_with_the_key_that_the_pod_has():
    own = container("base: Deployment")
    script = own["readinessProbe"]["exec"]["command"][2]
    compile(script, "probe", "exec")
    from alora.guard.routes import router

    (path,) = re.findall(r"127\.0\.0\.1:8000(/\S+?)\"", script)
    assert path in {route.path for route in router.routes}
    assert set(re.findall(r'environ\["(\w+)"\]', script)) <= {item["name"] for item in own["env"]}


def test_names_labels_and_ports_meet():
    pods = EVERYTHING["base: Deployment"]["spec"]["template"]
    labels = pods["metadata"]["labels"]
    selectors = [
        EVERYTHING["base: Deployment"]["spec"]["selector"]["matchLabels"],
        EVERYTHING["base: Service"]["spec"]["selector"],
        EVERYTHING["base: PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        EVERYTHING["base: NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        EVERYTHING["overlays/inferencepool: InferencePool"]["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)
    assert EVERYTHING["base: HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "alora-guard"
    (port,) = container("base: Deployment")["ports"]
    (service,) = EVERYTHING["base: Service"]["spec"]["ports"]
    (let_in,) = EVERYTHING["base: NetworkPolicy"]["spec"]["ingress"][0]["ports"]
    assert port["name"] == service["targetPort"] == let_in["port"]
    (backend,) = EVERYTHING["overlays/gateway: HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    assert (backend["name"], backend["port"]) == (EVERYTHING["base: Service"]["metadata"]["name"], service["port"])
    assert "replicas" not in EVERYTHING["base: Deployment"]["spec"]  # the autoscaler's, which each apply would set back
    volumes = {volume["name"] for volume in pods["spec"]["volumes"]}
    assert {mount["name"] for mount in container("base: Deployment")["volumeMounts"]} == volumes


@pytest.mark.parametrize("name", CONTAINERS)
def test_the_container_may_do_nothing_more_than_it_must(name):
    spec, own = pod(name), container(name)
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    (user,) = re.findall(r"^USER (\d+)$", dockerfile, re.MULTILINE)
    assert spec["securityContext"]["runAsUser"] == int(user) > 0
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    assert own["securityContext"]["readOnlyRootFilesystem"] is True
    assert own["securityContext"]["allowPrivilegeEscalation"] is False
    assert own["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= own.keys()
    assert "memory" in own["resources"]["limits"]
    written = {"/tmp", "/dev/shm"} | {
        value for name, value in environment().items() if "CACHE" in name and value[:1] == "/"
    }
    empty = {volume["name"] for volume in spec["volumes"] if "emptyDir" in volume}
    writable = {mount["mountPath"] for mount in own["volumeMounts"] if mount["name"] in empty}
    assert all(any(path == place or path.startswith(f"{place}/") for place in writable) for path in written)


def test_the_image_is_pinned_and_holds_what_the_wheel_takes():
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    bases = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    assert all(re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base) for base in bases)
    copied = [
        word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE) for word in line.split()
    ]
    assert all((ROOT / name).exists() for name in copied)
    assert {"alora", "configs", "pyproject.toml"} <= set(copied)
    pins = (DEPLOY / "requirements.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", line) for line in pins if not line.startswith("#"))
    for overlay in ("base", "overlays/kserve"):
        (image,) = yaml.safe_load((DEPLOY / overlay / "kustomization.yaml").read_text())["images"]
        assert image["newTag"] == __version__
        assert f"-t {image['name']}:{image['newTag']}" in dockerfile
    for name in CONTAINERS:
        assert container(name)["image"] == image["name"]
