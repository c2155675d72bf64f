"""Tables of what is not supported yet, so that refusing it, or seeing that it asks nothing, is no code."""

from __future__ import annotations

from collections.abc import Mapping

# OpenAI's and vLLM's parameters which are not supported yet, with the values that ask nothing of the server;
# null is one of them everywhere.
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
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
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_k": (0, -1),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}

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
    "continuous_usage_stats": (False,),
    "include_obfuscation": (False,),
}
