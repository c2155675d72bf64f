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
    "guided_grammar": (),
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
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}

# Each endpoint refuses what only the other has, and says so.
CHAT_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {**UNSUPPORTED, "best_of": (1,), "echo": (False,), "suffix": ("",)}
COMPLETION_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {**UNSUPPORTED, "top_logprobs": (0,)}
ONLY_CHAT: Mapping[str, str] = dict.fromkeys(
    ("messages", "max_completion_tokens", "top_logprobs", "continue_final_message", "add_generation_prompt"),
    "/v1/chat/completions",
)
ONLY_COMPLETIONS: Mapping[str, str] = dict.fromkeys(("prompt", "best_of", "echo", "suffix"), "/v1/completions")

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

# Fields of vLLM's `structured_outputs`. JSON never has free whitespace here, and nothing falls back.
STRUCTURED_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "disable_additional_properties": (False,),
    "disable_any_whitespace": (True, False),
    "disable_fallback": (True, False),
    "grammar": (),
    "structural_tag": (),
    "whitespace_pattern": (),
}

STREAM_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "include_obfuscation": (False,),
}
