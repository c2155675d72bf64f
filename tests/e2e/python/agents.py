"""Calls a server by libraries that need other versions of packages than the tests, and prints what came as one line of
JSON. python agents.py URL CASE"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Literal

from pydantic import BaseModel, Field

URL, CASE = sys.argv[1:]
MODEL = "tiny-chat"
PARIS: Any = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
EGGS: Any = [{"role": "user", "content": "Tom has 12 eggs."}]


class Answer(BaseModel):
    item: Literal["books", "eggs"]
    count: int = Field(ge=0, le=99)


class Place(BaseModel):
    city: str


def with_litellm() -> Any:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch one
    import litellm

    litellm.suppress_debug_info = True  # it would print to where the answer goes

    def complete(messages: Any, **options: Any) -> Any:
        fixed: Any = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{URL}/v1", "api_key": "none", "num_retries": 0}
        answer = litellm.completion(messages=messages, max_tokens=96, **fixed, **options)
        answer = litellm.stream_chunk_builder(list(answer)) if options.get("stream") else answer
        return answer.choices[0].message

    function = {"name": "get_weather", "description": "Get the weather in a city"}
    tools = [{"type": "function", "function": {**function, "parameters": Place.model_json_schema()}}]
    turns = []
    for stream in (False, True):
        message = complete(WEATHER, tools=tools, stream=stream)
        (call,) = message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"temperature": 21})}
        answer = complete([*WEATHER, message, result], tools=tools, stream=stream)
        turns.append([call.function.name, json.loads(call.function.arguments), answer.content])
    return {
        "whole": complete(PARIS).content,
        "streamed": complete(PARIS, stream=True).content,
        "turns": turns,
        "formatted": json.loads(complete(EGGS, response_format=Answer).content),
    }


def with_instructor() -> Any:
    """By mode: the model whole, and as it is at the end of a stream."""
    import instructor
    import openai

    found = {}
    with openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as client:
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.RESPONSES_TOOLS):
            asked: Any = {"model": MODEL, "messages": EGGS, "response_model": Answer, "max_retries": 0}
            chat = instructor.from_openai(client, mode=mode).chat.completions
            *_, last = chat.create_partial(**asked)
            found[mode.value] = [chat.create(**asked).model_dump(), last.model_dump()]
    return found


print(json.dumps({"litellm": with_litellm, "instructor": with_instructor}[CASE]()))
