"""Tables of what is not supported yet, so that refusing it, or seeing that it asks nothing, is no code."""

from __future__ import annotations

from collections.abc import Mapping

# OpenAI's and vLLM's parameters which are not supported yet, with the values that ask nothing of the server;
# null is one of them everywhere.
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "priority": (0,),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "prompt_logprobs": (),
    "reasoning_effort": ("none",),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "structured_outputs": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}

# Each endpoint refuses what only the other has.
CHAT_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {**UNSUPPORTED, "best_of": (1,), "echo": (False,), "suffix": ("",)}
COMPLETION_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {**UNSUPPORTED, "top_logprobs": (0,)}

# What SDKs send back with an earlier answer's message, and what it may hold.
MESSAGE_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_calls": ([],),
}

STREAM_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "include_obfuscation": (False,),
}
