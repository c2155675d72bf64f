"""The table of parameters that are known but not supported, with the neutral values that are accepted."""

from __future__ import annotations

from collections.abc import Mapping

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, COUNT_TOKENS = "/v1/messages", "/v1/messages/count_tokens"

# OpenAI's and vLLM's parameters, by where they stand, with the values that change nothing; null is one everywhere.
UNSUPPORTED: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "both endpoints": {
        "audio": (),
        "chat_template": (),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "guided_grammar": (),
        "length_penalty": (1,),
        "modalities": (["text"],),
        "moderation": (),
        "prediction": ("none",),
        "priority": (0,),
        "service_tier": ("auto", "default"),
        "skip_special_tokens": (True,),
        "truncate_prompt_tokens": (),
        "use_beam_search": (False,),
        "web_search_options": (),
    },
    # `nextEdit` is Continue's, for models of Inception.
    CHAT: {"best_of": (1,), "echo": (False,), "nextEdit": (False,), "suffix": ("",)},
    COMPLETIONS: {
        "chat_template_kwargs": ({},),
        "parallel_tool_calls": (True, False),
        "reasoning_effort": ("none",),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "top_logprobs": (0,),
    },
    # Nothing is stored, runs in the background, or calls tools by itself. What follows `n` has another name here.
    RESPONSES: {
        "access_programs": (),
        "add_special_tokens": (False,),
        "background": (False,),
        "background_options": (),
        "context_management": ([],),
        "conversation": (),
        "image": (),
        "max_tool_calls": (),
        "previous_response_id": (),
        "prompt": (),
        "prompt_logprobs": (),
        "prompt_cache_options": (),
        "store": (False,),
        "stream_options": ({}, {"include_obfuscation": False}),
        "truncation": ("disabled",),
        "n": (1,),
        "best_of": (1,),
        "echo": (False,),
        "logprobs": (False,),
        "diffusing": (False,),
        "max_completion_tokens": (),
        "max_tokens": (),
        "messages": (),
        "reasoning_effort": (),
        "response_format": ({"type": "text"},),
        "suffix": ("",),
    },
    "input": {"async": (False,), "caller": (), "encrypted_content": (), "namespace": (), "phase": ()},
    "input_text": {"annotations": ([],), "prompt_cache_breakpoint": ()},
    "function tools": {
        "allowed_callers": (["direct"],),
        "async": (False,),
        "defer_loading": (False,),
        "output_schema": (),
    },
    # There are no summaries: `auto` wants one where there is one.
    "reasoning": {
        "context": ("auto",),
        "generate_summary": ("auto",),
        "mode": ("standard",),
        "summary": ("auto",),
    },
    # SDKs send these back with an earlier answer's message.
    "messages": {
        "annotations": ([],),
        "audio": (),
        "function_call": (),
        "refusal": (),
    },
    # JSON never has free whitespace here, and nothing falls back.
    "structured_outputs": {
        "disable_additional_properties": (False,),
        "disable_any_whitespace": (True, False),
        "disable_fallback": (True, False),
        "grammar": (),
        "structural_tag": (),
        "whitespace_pattern": (),
    },
    "stream_options": {"include_obfuscation": (False,)},
    # Anthropic's.
    COUNT_TOKENS: {"context_management": (), "mcp_servers": ([],), "speed": ("standard",)},
    MESSAGES: {"container": (), "inference_geo": ()},
    "text": {"citations": ([],)},
    "tool_use": {"caller": ({"type": "direct"},), "toolset_name": ()},
    "tool_result": {"toolset_name": ()},
    "input_schema": {"allowed_callers": ([], ["direct"]), "defer_loading": (False,), "input_examples": ([],)},
    "thinking": {"budget_tokens": (), "display": ()},
}

LENGTHS_OF_OTHERS = "gen_len", "gen_length", "max_new_tokens"  # LLaDA's and transformers' names of max_tokens
NAMES_OF_OTHERS = {
    **dict.fromkeys((*LENGTHS_OF_OTHERS, "max_output_tokens"), "max_tokens"),
    "random_seed": "seed",
    "stop_sequences": "stop",
}
# By endpoint: the parameters that only another one has, with its path, and those that have another name here.
ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    CHAT: dict.fromkeys(
        (
            *("prompt", "best_of", "echo", "suffix"),
            *("likelihood", "likelihood_samples", "likelihood_start", "template"),
        ),
        COMPLETIONS,
    )
    | NAMES_OF_OTHERS
    | {"enable_thinking": "chat_template_kwargs.enable_thinking"},
    COMPLETIONS: dict.fromkeys(
        (
            *("messages", "max_completion_tokens", "top_logprobs", "continue_final_message", "add_generation_prompt"),
            *("tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "reasoning_effort"),
        ),
        CHAT,
    )
    | NAMES_OF_OTHERS,
    RESPONSES: {
        **dict.fromkeys(("likelihood", "likelihood_samples", "likelihood_start", "template"), COMPLETIONS),
        **dict.fromkeys(("n", "prompt_logprobs", "diffusing", "add_special_tokens"), CHAT),
        **dict.fromkeys(("max_tokens", "max_completion_tokens", *LENGTHS_OF_OTHERS), "max_output_tokens"),
        **dict.fromkeys(("best_of", "echo", "suffix"), COMPLETIONS),
        "messages": "input",
        "response_format": "text.format",
        "reasoning_effort": "reasoning.effort",
        "logprobs": 'include: ["message.output_text.logprobs"]',
    },
    MESSAGES: {
        **dict.fromkeys(("max_completion_tokens", "max_output_tokens", *LENGTHS_OF_OTHERS), "max_tokens"),
        "stop": "stop_sequences",
    },
}


def unsupported_by(endpoint: str) -> Mapping[str, tuple[object, ...]]:
    return {**UNSUPPORTED["both endpoints"], **UNSUPPORTED[endpoint]}
