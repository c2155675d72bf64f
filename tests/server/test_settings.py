"""A flag beats the environment, which beats the default; a bad value is one line that says where it came from."""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path

import pytest

from asynclane.server import settings as module
from asynclane.server.settings import (
    Settings,
    SettingsError,
    add_flags,
    read_settings,
    split_origins,
    split_sizes,
    traces_url,
)


def read(*flags: str, **environ: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return read_settings(parser.parse_args(flags), environ)


def test_the_defaults_are_safe_and_serve_the_embedded_model() -> None:
    settings = read()
    assert settings == Settings()
    assert (settings.model, settings.host, settings.port) == ("tiny-chat", "127.0.0.1", 8000)
    assert settings.api_key is None


def test_a_flag_beats_the_environment_which_beats_the_default() -> None:
    assert read(ASYNCLANE_PORT="9000").port == 9000
    assert read("--port", "9001", ASYNCLANE_PORT="9000").port == 9001
    assert read("--port", "9001", ASYNCLANE_PORT="nonsense").port == 9001


@pytest.mark.parametrize("field", dataclasses.fields(Settings), ids=lambda field: field.name)
def test_every_setting_has_a_flag_and_a_variable(field: dataclasses.Field[object]) -> None:
    flag, variable = "--" + field.name.replace("_", "-"), f"ASYNCLANE_{field.name.upper()}"
    if field.metadata["type"] is bool:
        assert getattr(read(flag, **{variable: "off"}), field.name) is True
        assert getattr(read("--no-" + flag[2:], **{variable: "on"}), field.name) is False
        assert [getattr(read(**{variable: word}), field.name) for word in ("on", "TRUE", "0")] == [True, True, False]
        return
    choices = field.metadata.get("choices")
    value = choices[-1] if choices else "77" if field.metadata.get("high", 77) >= 77 else "0.5"
    expected = field.metadata["type"](value)
    assert getattr(read(flag, value), field.name) == expected
    assert getattr(read(**{variable: value}), field.name) == expected


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        (["--port", "x"], {}, "--port must be a whole number, not 'x'"),
        (["--port", "65536"], {}, "--port must be from 0 to 65535, not 65536"),
        (["--dtype", "int8"], {}, "--dtype must be one of auto, float32, bfloat16, float16, not 'int8'"),
        (["--max-model-len", "0"], {}, "--max-model-len must be from 2"),
        (["--api-key", ""], {}, "--api-key must not be empty"),
        ([], {"ASYNCLANE_DETERMINISTIC": "yes"}, "DETERMINISTIC must be one of on, off, true, false, 1, 0, not"),
        (["--gpu-memory-utilization", "1.5"], {}, "--gpu-memory-utilization must be from 0.01 to 1, not 1.5"),
        (["--kv-cache-dtype", "int8"], {}, "--kv-cache-dtype must be one of auto, fp8, not 'int8'"),
        (["--quantization", "int3"], {}, "--quantization must be one of fp8, int4, none, not 'int3'"),
        ([], {"ASYNCLANE_API_KEY": ""}, "ASYNCLANE_API_KEY must not be empty"),
        ([], {"ASYNCLANE_API_KEY": " "}, "ASYNCLANE_API_KEY must not be empty"),
        (["--api-key", "\r\n"], {}, "--api-key must not be empty"),
        (["--api-key-file", " "], {}, "--api-key-file must not be empty"),
        ([], {"ASYNCLANE_MAX_NUM_SEQS": "1.5"}, "ASYNCLANE_MAX_NUM_SEQS must be a whole number, not '1.5'"),
        (["--compile-cache", " "], {}, "--compile-cache must not be empty"),
        ([], {"ASYNCLANE_PORT": "tcp://10.0.0.1:8000"}, "enableServiceLinks: false"),
    ],
)
def test_the_error_about_a_bad_value_names_its_source(flags: list[str], environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(*flags, **environ)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_of_graphs_are_numbers_with_commas_between_them() -> None:
    assert split_sizes("16, 32,64") == (16, 32, 64)
    for text in ("16,", "some", "1.5"):
        with pytest.raises(SettingsError, match="--cuda-graph-sizes must be whole numbers with commas"):
            split_sizes(text)


BASE, TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.mark.parametrize(
    ("given", "environ", "url"),
    [
        (None, {}, None),
        (None, {BASE: ""}, None),
        ("http://c:4318", {}, "http://c:4318/v1/traces"),
        ("https://c/otlp/", {BASE: "http://other"}, "https://c/otlp/v1/traces"),
        ("http://c/v1/traces", {}, "http://c/v1/traces"),
        ("http://[::1]:4318", {"OTEL_TRACES_EXPORTER": "none"}, "http://[::1]:4318/v1/traces"),
        (None, {BASE: "http://c:4318"}, "http://c:4318/v1/traces"),
        (None, {BASE: "http://c:4318", TRACES: "http://t/custom"}, "http://t/custom"),
        (None, {BASE: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, None),
        (None, {BASE: "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "http://c/v1/traces"),
        ("http://c:4318", {"OTEL_SDK_DISABLED": "True"}, None),
    ],
)
def test_spans_go_where_the_flag_or_the_standard_variables_say(
    given: str | None, environ: dict[str, str], url: str | None
) -> None:
    assert traces_url(Settings(otlp_endpoint=given), environ) == url


@pytest.mark.parametrize(
    ("given", "environ", "message"),
    [
        ("c:4318", {}, "--otlp-endpoint must be http://HOST:PORT or https://HOST:PORT, not 'c:4318'"),
        ("http://", {}, "--otlp-endpoint must be http://HOST:PORT"),
        ("http://c:99999", {}, "--otlp-endpoint must be http://HOST:PORT"),
        ("http://:4318", {}, "--otlp-endpoint must be http://HOST:PORT"),
        ("http://c:4318?x=1", {}, "--otlp-endpoint must be http://HOST:PORT"),
        (None, {BASE: "grpc://c:4317"}, f"{BASE} must be http://HOST:PORT"),
        (None, {TRACES: "c"}, f"{TRACES} must be http://HOST:PORT"),
        ("http://c:4317", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "PROTOCOL must be http/protobuf, not 'grpc'"),
    ],
)
def test_an_endpoint_that_cannot_take_spans_is_refused(
    given: str | None, environ: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        traces_url(Settings(otlp_endpoint=given), environ)


@pytest.mark.parametrize("missing", module.SDK)
def test_without_the_extra_an_endpoint_is_refused(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == missing else object())
    assert traces_url(Settings(), {}) is None
    with pytest.raises(SettingsError, match=re.escape("--constraint constraints.txt '.[otel]'")):
        traces_url(Settings(otlp_endpoint="http://c:4318"), {})


def test_settings_built_by_hand_are_checked_too() -> None:
    with pytest.raises(SettingsError, match="max_queue must be from 1"):
        Settings(max_queue=0)


def test_the_key_is_not_shown() -> None:
    assert "hunter2" not in repr(Settings(api_key="hunter2"))


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ([], "tiny-chat"),
        (["--model", "/models/llada-8b/"], "llada-8b"),
        (["--model", "models/llada/"], "llada"),
        (["--model", "GSAI-ML/LLaDA-8B-Instruct"], "GSAI-ML/LLaDA-8B-Instruct"),
        (["--model", "GSAI-ML/LLaDA-8B-Instruct@refs/pr/1"], "GSAI-ML/LLaDA-8B-Instruct"),
        (["--model", "./GSAI-ML/LLaDA-8B-Instruct"], "LLaDA-8B-Instruct"),
        (["--model", "models/embedded"], "embedded"),  # a directory here
        (["--served-model-name", "gpt"], "gpt"),
    ],
)
def test_the_model_is_called_as_it_is_served(flags: list[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert read(*flags).model_name == name


def test_a_model_may_have_several_names_each_once() -> None:
    settings = read("--served-model-name", "gpt, llada,gpt")
    assert (settings.model_names, settings.model_name) == (("gpt", "llada"), "gpt")
    with pytest.raises(SettingsError, match="--served-model-name: a name is empty"):
        read("--served-model-name", "gpt,")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("ASYNCLANE_MAX_MODEL_LENGTH", "ASYNCLANE_MAX_MODEL_LEN"),
        ("ASYNCLANE_APIKEY", "ASYNCLANE_API_KEY"),
        ("ASYNCLANE_api_key", "ASYNCLANE_API_KEY"),
        ("ASYNCLANE_QUANTISATION", "ASYNCLANE_QUANTIZATION"),
        ("ASYNCLANE_", "ASYNCLANE_"),
    ],
)
def test_the_error_about_a_misspelt_variable_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{name} is no setting: did you mean {nearest}.*$"):
        read(**{name: "x"})


@pytest.mark.parametrize("origins", ["app.example.com", "https://a.example, nonsense", "https://a.example/path", "*,"])
def test_what_no_browser_sends_is_no_origin(origins: str) -> None:
    with pytest.raises(SettingsError, match=r"^--allowed-origins: .* is no origin"):
        split_origins(origins)


def test_variables_of_others_are_left_alone() -> None:
    """Kubernetes has some for each service, and they may begin like ours."""
    others = ["MAX_MODEL_LEN", "ASYNC", "ASYNCLANE_SERVICE_HOST", "ASYNCLANE_SERVICE_PORT_HTTP"]
    others += ["ASYNCLANE_PORT_8000_TCP_ADDR", "ASYNCLANE_CANARY_PORT"]
    assert read(**dict.fromkeys(others, "x")) == Settings()
