"""``alora serve``: an address that cannot be listened on is said before anything is loaded."""

import socket
import sys

import pytest

from alora.commands import serve, serve_vllm
from alora.config.schema import Recipe, ServingSettings
from alora.errors import ConfigError, MissingDependency


@pytest.fixture
def taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.fixture
def started(monkeypatch):
    """What was served, without a server."""
    recipes = []
    monkeypatch.setattr(serve_vllm, "serve", lambda recipe: recipes.append(recipe) or 0)
    return recipes


@pytest.mark.parametrize(("scorer", "said"), [("vllm", ModuleNotFoundError), ("packed", MissingDependency)])
def test_fastapi_is_named_where_the_guard_needs_it_alone(monkeypatch, scorer, said):
    """vLLM's own server has no guard: what its way lacks is said as it is."""
    monkeypatch.setitem(sys.modules, f"alora.commands.serve_{scorer}", None)
    with pytest.raises(said):
        serve.run(Recipe(serving=ServingSettings(scorer=scorer, port=0)))


@pytest.mark.parametrize("scorer", ["vllm", "packed", "http://127.0.0.1:1"])
def test_a_port_that_is_taken_is_named_before_the_base_is_loaded(taken, scorer):
    with pytest.raises(ConfigError, match=rf"serving.host=127.0.0.1 serving.port={taken}: Address already in use"):
        serve.run(Recipe(serving=ServingSettings(scorer=scorer, port=taken)))


def test_vllms_own_options_say_where_it_listens(taken, started):
    settings = ServingSettings(port=taken, arguments=["--port=8123"])
    assert serve.run(Recipe(serving=settings)) == 0
    assert started[0].serving is settings
