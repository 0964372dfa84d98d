"""Two bundles on one toy base; the second one's labels have their token ids the other way round."""

from dataclasses import replace

import pytest

from alora.base.load import LoadedBase
from alora.bundle.read import Bundle
from alora.bundle.write import write_bundle
from alora.policy import Policy
from alora.prompt.render import Renderer
from tests.integration.bundle.conftest import PROMPT, make_base, make_contents


@pytest.fixture(scope="package")
def base() -> LoadedBase:
    return make_base()


@pytest.fixture(scope="package")
def bundles(base: LoadedBase, tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    folder, made = tmp_path_factory.mktemp("bundles"), []
    for seed, policy in enumerate(("advice", "refunds")):
        contents = make_contents(base, folder / f"{policy}.adapter", policy, seed)
        if seed:
            other = contents.policy
            contents = replace(contents, policy=Policy(other.id, other.title, other.rule, other.labels, ("No", "Yes")))
        made.append(write_bundle(contents, folder / policy, golden_rows=3))
    return made


@pytest.fixture(scope="package")
def renderer(base: LoadedBase) -> Renderer:
    return Renderer(base.tokenizer, PROMPT)
