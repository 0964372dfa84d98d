"""``alora serve`` on the toy battery, and what its tests ask it."""

import subprocess

import httpx

from tests.forked import Forked
from tests.vllm import bundles as store
from tests.vllm.http_server import free_port, serving

TOLERANCE = 1e-4  # of a probability: two engines in float32
SMALL = "--enforce-eager,--num-gpu-blocks-override,256,--enable-prompt-tokens-details"
TALK = [
    {"role": "user", "content": "My parcel is late. " * 10},
    {"role": "assistant", "content": "I am sorry. You will get your money back. " * 3},
]


def start(folder, battery=None, arguments=SMALL, process=Forked, **environment):
    port = free_port()
    command = [
        *("-m", "alora", "serve", f"battery={battery or store.battery()}"),
        f"base.source={store.base_folder()}",
        *(f"serving.port={port}", "serving.max_model_len=512", f"serving.arguments=[{arguments}]"),
    ]
    return serving(command, port, folder / "log", start=process, **environment)


def ask(server, seconds=60, **fields):
    return httpx.post(f"{server.url}/v1/guard", json={"messages": TALK} | fields, timeout=seconds)


def metric(server, name):
    lines = [line for line in httpx.get(f"{server.url}/metrics").text.splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def cores(server):
    """The engine core is a child of the server."""
    found = subprocess.run(["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True, check=True)
    return [int(child) for child in found.stdout.split()]
