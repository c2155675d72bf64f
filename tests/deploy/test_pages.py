"""Commands of the pages, word for word, as far as they run without an image engine and a cluster."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from asynclane.server.settings import Settings

from ..support.checkout import tracked
from ..support.servers import Server
from .dockerfile import read
from .tools import DEPLOY, ROOT, program, run

PAGES = (ROOT / "README.md", DEPLOY / "README.md", ROOT / "docs" / "operations.md")
MODEL = "GSAI-ML/LLaDA-8B-Instruct"
URL = "http://127.0.0.1:8000"


def commands(page: Path, name: str) -> Iterator[list[str]]:
    """The words of each command of that name in the blocks of the page, without variables before it."""
    for block in re.findall(r"^```\w*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for command in line.split(" | "):
                if name not in command:  # another command may have a quotation of several lines
                    continue
                words = shlex.split(command, comments=True)
                while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                    words.pop(0)
                if words and words[0] == name:
                    yield words


def value(words: list[str], flag: str) -> str | None:
    return words[words.index(flag) + 1] if flag in words else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_images_are_built_from_stages_that_are_there_and_started_without_rights(page: Path) -> None:
    stages, tags = read(ROOT / "Dockerfile"), set()
    found = list(commands(page, "docker"))
    for words in found:
        if words[1] == "build":
            assert value(words, "--target") in (None, *stages)
            tags.add(value(words, "--tag"))
        if words[1] == "compose":
            assert (ROOT / str(value(words, "--file"))).is_file()
            assert value(words, "--profile") in ("gpu", "cpu")
    started = [words for words in found if words[1] == "run"]
    assert started
    for words in started:
        assert {"--read-only", "--cap-drop", "--security-opt", "--tmpfs"} <= set(words)
        assert tags & set(words)


def test_the_chart_takes_what_the_page_sets(helm: str) -> None:
    """Each command `helm`, rendered instead of installed; an upgrade keeps what was set before."""
    kept: list[str] = []
    for words in commands(DEPLOY / "README.md", "helm"):
        if "deploy/helm/asynclane" not in words:
            continue
        flags = [word for word in words[2:] if word != "--reuse-values"]
        done = run([helm, "template", *flags[:2], *kept, *flags[2:]], cwd=ROOT)
        assert done.returncode == 0, done.stderr
        kept = [*kept, *flags[2:]]
    objects = {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}
    assert objects["Deployment"]["spec"]["replicas"] == 1
    claim = objects["PersistentVolumeClaim"]["metadata"]["name"]
    job = yaml.safe_load((DEPLOY / "helm" / "download.yaml").read_text())
    (volume,) = (one for one in job["spec"]["template"]["spec"]["volumes"] if one["name"] == "weights")
    assert volume["persistentVolumeClaim"]["claimName"] == claim
    environment = objects["Deployment"]["spec"]["template"]["spec"]["containers"][0]["env"]
    model = next(one["value"] for one in environment if one["name"] == "ASYNCLANE_MODEL")
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["hf", "download", model]


def test_the_job_s_image_is_replaced_by_the_page_s_command() -> None:
    (words,) = commands(DEPLOY / "README.md", "sed")
    done = run(words, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "image: REGISTRY/asynclane:gpu" in done.stdout


def test_no_page_or_message_installs_from_an_index_on_which_there_is_no_release() -> None:
    """A stranger could take the name there."""
    release = any("there is a release" in (ROOT / page).read_text() for page in ("README.md", "docs/operations.md"))
    wrong = re.compile(r"install (?:-\S+ )*['\"]?asynclane(?:\[|['\"`\s]|==|$)")
    assert wrong.search("`pip install 'asynclane[ray]'`")
    assert wrong.search("install asynclane[gpu]")
    found = []
    for name in tracked():
        if name.endswith((".md", ".py", ".toml", ".yaml", ".sh", "Dockerfile", "Makefile")) and name != "CHANGELOG.md":
            lines = enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
            found += [f"{name}:{number}" for number, line in lines if wrong.search(line) and "helm" not in line]
    here = f"{Path(__file__).relative_to(ROOT)}:"
    assert release or [where for where in found if not where.startswith(here)] == []


def test_the_unit_of_systemd_is_valid_and_waits_for_the_drain(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "asynclane.service").read_text()
    program_line = "ExecStart=/opt/asynclane/.venv/bin/asynclane serve\n"
    assert program_line in text
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)[0]) >= Settings().drain_s + 15
    path = tmp_path / "asynclane.service"
    path.write_text(text.replace(program_line, "ExecStart=/bin/true\n"))
    analyze = program("systemd-analyze")
    done = run([analyze, "verify", str(path)])
    assert (done.returncode, done.stderr) == (0, "")
    path.write_text(path.read_text().replace("LimitNOFILE", "LimitFILES"))
    assert "LimitFILES" in run([analyze, "verify", str(path)]).stderr


def test_files_that_the_page_applies_are_there() -> None:
    for name in ("kubectl", "helm"):
        for words in commands(DEPLOY / "README.md", name):
            for flag in ("--filename", "--values"):
                path = value(words, flag)
                assert path in (None, "-") or (ROOT / str(path)).is_file(), words


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.parent.name)
def test_the_requests_of_the_page_are_answered(page: Path, server: Server) -> None:
    found = list(commands(page, "curl"))
    assert len(found) >= 2
    for words in found:
        here = [
            word.replace(URL, server.url).replace(MODEL, "tiny-llada").replace("tiny-chat", "tiny-llada")
            for word in words[1:]
        ]
        done = run([program("curl"), "--fail", "--silent", *here])
        assert done.returncode == 0, words
        assert "ready" in done.stdout or "Paris" in done.stdout


def test_every_link_of_the_page_leads_somewhere() -> None:
    for page in (DEPLOY / "README.md", ROOT / "docs" / "operations.md"):
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            name, _, anchor = target.partition("#")
            there = (page.parent / name).resolve() if name else page
            assert there.exists(), target
            if anchor:
                heads = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}
                assert anchor in anchors, target


def test_alerts_of_the_page_are_those_of_the_rules() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in rules}
    assert dict(re.findall(r"^\| `(Asynclane\w+)` \| (\w+) \|", page, re.MULTILINE)) == severities


def test_every_file_of_the_folder_is_yaml() -> None:
    for path in sorted(DEPLOY.rglob("*.y*ml")):
        if path.parent.name != "templates":
            assert list(yaml.safe_load_all(path.read_text())), path
