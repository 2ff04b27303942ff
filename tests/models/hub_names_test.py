"""A model's name on the hub, given where a directory is expected."""

import pytest

from mempo_jax.models import hf


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen"),
        ("some-body/A_model.v2", "some-body"),
        ("models/Qwen2.5-7B-Instruct", "Qwen"),
        ("models/SmolLM2-135M-Instruct", "HuggingFaceTB"),
    ],
)
def test_a_name_on_the_hub_says_how_to_download_it(tmp_path, monkeypatch, path, owner):
    monkeypatch.chdir(tmp_path)
    name = path.split("/")[1]
    text = hf.how_to_download(path, "policy.path")
    assert f"`hf download {owner}/{name} --local-dir models/{name}`" in text
    assert text.endswith(f"set --config.policy.path=models/{name}")
    (tmp_path / path).mkdir(parents=True)
    assert hf.how_to_download(path, "policy.path") == ""


@pytest.mark.parametrize(
    "path",
    ["nowhere", "./Qwen/x", "/a/b", "~/a", "a/b/c", "runs/base", "models/own", "a:b/c"],
)
def test_other_paths_are_no_names_on_the_hub(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert hf.how_to_download(path, "policy.path") == ""
