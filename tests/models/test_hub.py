"""A repository is found in the local cache of Hugging Face, and a missing one is refused with the command
that fetches it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from asynclane.models.checkpoint.config import ModelError
from asynclane.models.checkpoint.registry import find_model

from ..support.hub import served_hub
from ..support.published import COMMIT, SHARDS, cached, write_llada
from ..support.scale import LONG

INSTRUCT = "GSAI-ML/LLaDA-8B-Instruct"
LAST = f"model-{SHARDS:05}-of-{SHARDS:05}.safetensors"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home of Hugging Face."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def snapshot(home: Path) -> Path:
    return cached(home, INSTRUCT, write_llada(home / "source"))


def refusal(name: str) -> str:
    with pytest.raises(ModelError) as caught:
        find_model(name)
    return str(caught.value)


def test_a_revision_is_a_branch_or_a_commit(home: Path) -> None:
    snapshot = cached(home, INSTRUCT, write_llada(home / "source"), revision="v2")
    assert snapshot == home / "hub" / f"models--{INSTRUCT.replace('/', '--')}" / "snapshots" / COMMIT
    assert find_model(f"{INSTRUCT}@v2") == find_model(f"{INSTRUCT}@{COMMIT}") == snapshot
    line = refusal(INSTRUCT)
    assert f"run `hf download {INSTRUCT}`" in line
    assert f"if it is gated, request access on https://huggingface.co/{INSTRUCT} and run `hf auth login`" in line
    assert f"at revision v3 is no directory here, and the cache {home}/hub" in refusal(f"{INSTRUCT}@v3")
    assert f"run `hf download {INSTRUCT} --revision v3`" in refusal(f"{INSTRUCT}@v3")


def test_a_directory_goes_before_a_repository(home: Path, snapshot: Path) -> None:
    directory = write_llada(home / INSTRUCT)
    assert find_model(INSTRUCT) == directory.relative_to(home)
    assert find_model(str(snapshot)) == snapshot


@pytest.mark.parametrize("name", ["GSAI-ML/LLaDA--8B", "a/b/c", "llada", "a/b@", "../a"])
def test_what_no_repository_is_called_is_refused(home: Path, name: str) -> None:
    assert "hf download" not in refusal(name)


@pytest.mark.parametrize(
    ("spoil", "lacking"),
    [
        (lambda path: (path / LAST).resolve().unlink(), LAST),
        (
            lambda path: [shard.unlink() for shard in path.glob("model-*")],
            "model-00003-of-00006.safetensors and 3 more",
        ),
        (lambda path: (path / "model.safetensors.index.json").unlink(), "model.safetensors"),
    ],
    ids=["the blob of a shard", "all shards", "the index"],
)
def test_a_download_that_was_not_finished_is_told(
    snapshot: Path, spoil: Callable[[Path], object], lacking: str
) -> None:
    spoil(snapshot)
    line = refusal(INSTRUCT)
    assert "is not complete, it lacks" in line
    assert lacking in line
    assert line.endswith(f"run `hf download {INSTRUCT}` again")


def test_so_is_one_into_a_directory(tmp_path: Path) -> None:
    directory = write_llada(tmp_path / "llada")
    (directory / LAST).unlink()
    assert find_model(str(directory)) == directory  # nothing says that it was a download
    unfinished = directory / ".cache" / "huggingface" / "download" / "x1.0a1b.incomplete"
    unfinished.parent.mkdir(parents=True)
    unfinished.touch()
    assert refusal(str(directory)).endswith(f"lacks {LAST}: run `hf download` with --local-dir {directory} again")
    (directory / LAST).touch()
    assert find_model(str(directory)) == directory  # what is unfinished is nothing that is needed


def test_so_is_a_snapshot_given_as_a_directory(snapshot: Path) -> None:
    (snapshot / LAST).unlink()
    (snapshot.parents[1] / "blobs" / f"{'f' * 64}.incomplete").touch()
    assert f"lacks {LAST}" in refusal(str(snapshot))


OFFLINE = """
import socket, sys

def refuse(*arguments):
    raise AssertionError("the network was asked")

socket.socket.connect = socket.getaddrinfo = refuse
from asynclane.server.cli.main import main
print([main(["inspect", name]) for name in sys.argv[1:]])
"""


@LONG
def test_hf_home_says_where_the_cache_is_and_the_network_is_never_asked(snapshot: Path, home: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", OFFLINE, INSTRUCT, "GSAI-ML/LLaDA-8B-Base"],
        env={**environ, "HF_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert str(snapshot) in done.stdout
    assert done.stdout.endswith("[0, 2]\n")
    (missing,) = done.stderr.splitlines()
    assert "run `hf download GSAI-ML/LLaDA-8B-Base`" in missing


TWICE = """
import sys
from asynclane.server.cli.main import main
sys.exit(main(sys.argv[1:]) or main(sys.argv[1:]))
"""


def fetched(home: Path, url: str, name: str, *program: str) -> subprocess.CompletedProcess[str]:
    """`asynclane generate` with a download, or another program of its arguments, in a process that knows no other
    Hugging Face."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environ |= {"HF_HOME": str(home), "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    argv = ["generate", "Hi", "--max-tokens", "4", "--model", name, "--download"]
    command = [sys.executable, "-P", *(program or ("-m", "asynclane.server")), *argv]
    return subprocess.run(command, env=environ, cwd=home.parent, capture_output=True, text=True, timeout=120)


@LONG
def test_a_repository_is_downloaded_if_that_is_asked_for(tmp_path: Path) -> None:
    source = write_llada(tmp_path / "source")
    (source / "modeling.py").write_text("raise SystemExit('code of a repository ran')")
    with served_hub(INSTRUCT, source) as (url, sent):
        done = fetched(tmp_path / "home", url, INSTRUCT, "-c", TWICE)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("tokens per forward") == 2
        weights = [name for name in sent if name.endswith(".safetensors")]
        assert len(weights) == SHARDS
        assert min(map(sent.index, weights)) > sent.index("config.json"), "the architecture is checked first"
        assert "modeling.py" not in sent
        assert len(sent) == len(set(sent)), "what is there is not fetched again"


EACH = """
import sys
from asynclane.server.cli.main import main
print([main([*sys.argv[1:], "--model", name]) for name in {names!r}])
"""


@LONG
def test_a_repository_of_an_unknown_architecture_or_none_is_one_line_and_no_weights_are_downloaded(
    tmp_path: Path,
) -> None:
    source = write_llada(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "architectures": ["GPT2LMHeadModel"]}))
    with served_hub(INSTRUCT, source) as (url, sent):
        done = fetched(tmp_path / "home", url, INSTRUCT, "-c", EACH.format(names=("nobody/nothing", INSTRUCT)))
    assert done.stdout == "[2, 2]\n"
    absent, *_, unknown = done.stderr.splitlines()
    assert absent.startswith("asynclane: nobody/nothing cannot be downloaded: ")
    assert "architecture 'GPT2LMHeadModel' is not supported" in unknown
    assert [name for name in sent if name.endswith(".json")]
    assert not [name for name in sent if name.endswith(".safetensors")]
