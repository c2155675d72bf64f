"""Pages of other origins call the server only where a setting allows it."""

from __future__ import annotations

from typing import Any

import pytest

PAGE = "https://app.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


@pytest.mark.parametrize(
    ("allowed", "passes"), [(None, False), ("https://other.example", False), (PAGE, True), ("*", True)]
)
async def test_a_browser_on_another_origin_needs_a_setting_and_no_key_for_its_preflight(
    api: Any, allowed: str | None, passes: bool
) -> None:
    async with api(allowed_origins=allowed, api_key="secret") as client:
        preflight = await client.http.options("/v1/chat/completions", headers=PREFLIGHT)
        answer = await client.http.get("/v1/models", headers={"origin": PAGE, "authorization": "Bearer secret"})
    assert (preflight.status_code == 200) is passes
    assert (answer.headers.get("access-control-allow-origin") in (PAGE, "*")) is passes
    if passes:
        assert "authorization" in preflight.headers["access-control-allow-headers"]
