"""What is opened, and what is refused before it is."""

from contextlib import nullcontext

import pytest
from omegaconf._utils import get_yaml_loader

from alora.errors import BundleError, ConfigError
from alora.text import LONGEST, read_json, read_yaml


@pytest.mark.parametrize("large", [False, True])
def test_a_record_of_more_than_16_mib_is_refused(tmp_path, large):
    file = tmp_path / "alora.json"
    file.write_bytes(b'{"text": "' + b"x" * (LONGEST - (0 if large else 12)) + b'"}')
    with pytest.raises(BundleError, match="longer than 16 MiB") if large else nullcontext():
        read_json(file, BundleError, "copy it again")


ODD_YAML = {
    "a path": ("x: !!python/object/apply:pathlib.PosixPath [/etc]", "PosixPath|could not determine a constructor"),
    "a path as a key": ("? !!python/object/apply:pathlib.PosixPath [/etc]\n: 1", "PosixPath|could not determine"),
    "pairs": ("x: !!omap [{a: '${oc.env:X}'}]", "is read as tuple; write it without a tag"),
}


@pytest.mark.parametrize("loader", [None, get_yaml_loader()], ids=["plain", "OmegaConf's"])
@pytest.mark.parametrize("name", ODD_YAML)
def test_yaml_gives_jsons_types_alone(name, loader, tmp_path):
    text, words = ODD_YAML[name]
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_yaml(tmp_path / "a.yaml", ConfigError, "mend it", loader)
    (tmp_path / "a.yaml").write_text("{day: 2026-01-02, n: [1, 2.5, true, null, {a: b}]}")
    assert read_yaml(tmp_path / "a.yaml", ConfigError, "mend it", loader) == {
        "day": "2026-01-02",
        "n": [1, 2.5, True, None, {"a": "b"}],
    }
