"""Evaluates a server by lm-evaluation-harness with a task of each kind, and prints the scores as one line of JSON.
python harness.py FILE URL MODEL; FILE has problems in the form of GSM8K"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

FILE, URL, MODEL = sys.argv[1:]
DECODER = "decoder=fast-dllm,threshold=0.8"
CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo"}


def documents() -> list[dict[str, Any]]:
    choices = [f"{city}." for city in CAPITALS.values()]
    return [
        {
            "begun": f"The capital of {country} is",
            "question": f"What is the capital of {country}?",
            "choices": choices,
            "label": at,
            "rest": choices[at],
            "answer": f"The capital of {country} is {choices[at]}",
        }
        for at, country in enumerate(CAPITALS)
    ]


def task(name: str, text: str, target: str, metric: str, **fields: Any) -> dict[str, Any]:
    scored = {"metric": metric, "aggregation": "mean", "higher_is_better": True}
    return {
        "task": name,
        "dataset_path": "json",
        "test_split": "test",
        "doc_to_text": text,
        "doc_to_target": target,
        "metric_list": [scored],
        **fields,
    }


def tasks(data: str) -> tuple[dict[str, Any], ...]:
    files = {"dataset_kwargs": {"data_files": {"test": data}}}
    options = {"until": ["?"], "max_gen_toks": 16, "do_sample": False, "temperature": 0.0}
    written = {"output_type": "generate_until", "generation_kwargs": options, **files}
    written["filter_list"] = [{"name": "bare", "filter": [{"function": "regex", "regex_pattern": r"\s*(.*)"}]}]
    chosen = {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", **files}
    return (
        task("chosen", "{{begun}}", "{{label}}", "acc", **chosen),
        task("continued", "{{begun}}", "{{rest}}", "exact_match", **written),
        task("answered", "{{question}}", "{{answer}}", "exact_match", **written),
    )


def word_problems() -> dict[str, Any]:
    """The harness's own task `gsm8k` without shots, on the file."""
    pattern = {"strict": r"#### (\-?[0-9\.\,]+)", "flexible": r"(-?[$0-9.,]{2,})|(-?[0-9]+)"}
    select = {"strict": {}, "flexible": {"group_select": -1}}
    filters = [
        {
            "name": name,
            "filter": [
                {"function": "regex", "regex_pattern": pattern[name], **select[name]},
                {"function": "take_first"},
            ],
        }
        for name in pattern
    ]
    until = ["Question:", "</s>", "<|im_end|>"]
    found = task(
        "word_problems",
        "Question: {{question}}\nAnswer:",
        "{{answer}}",
        "exact_match",
        output_type="generate_until",
        dataset_kwargs={"data_files": {"test": FILE}},
        generation_kwargs={"until": until, "max_gen_toks": 128, "do_sample": False, "temperature": 0.0},
        filter_list=filters,
    )
    found["metric_list"][0] |= {"ignore_case": True, "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"]}
    return found


def scores(
    lm_eval: Any, name: str, path: str, *given: dict[str, Any], options: str | None = None
) -> dict[str, dict[str, float]]:
    """The results of each task; `options` are decoding parameters. Only chats have a template: the
    harness has none for a tokenizer of a server."""
    reached = {"base_url": f"{URL}/v1/{path}", "model": MODEL, "num_concurrent": 4, "max_retries": 1}
    result = lm_eval.simple_evaluate(
        model=name,
        model_args=reached,
        tasks=list(given),
        apply_chat_template=path.startswith("chat"),
        bootstrap_iters=0,
        gen_kwargs=options,
    )
    return dict(result["results"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"HF_HOME": folder, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
        import lm_eval

        data = Path(folder, "capitals.json")
        data.write_text("\n".join(map(json.dumps, documents())))
        chosen, continued, answered = tasks(str(data))
        texts, chats = ("local-completions", "completions"), ("local-chat-completions", "chat/completions")
        results = scores(lm_eval, *texts, chosen, continued) | scores(lm_eval, *chats, answered)
        found = {name: values.get("acc,none", values.get("exact_match,bare")) for name, values in results.items()}
        counted = scores(lm_eval, *chats, word_problems(), options=DECODER)["word_problems"]
        found |= {name: counted[f"exact_match,{name}"] for name in ("strict", "flexible")}
        print(json.dumps(found))


main()
