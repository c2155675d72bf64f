"""AsyncLane as it was published: the defaults of `asynclane-paper`, and what the paper leaves open.

Source: arXiv 2606.08411. No code was published with it. Its rules are: one threshold for all lanes and drafts;
boundaries at full stops alone (`boundary` "period"), or in code at line breaks after complete statements ("code");
siblings on keys and values as they were at the fork; keys and values of a lane are those of its last forward until a
refresh; a refresh reads all tokens, and its logits advance all lanes; an end token ends its lane once that is full.
"""

from __future__ import annotations

from collections.abc import Mapping

from .params import BLOCK, LANE, OFF

RULES: Mapping[str, object] = {
    "block_length": 32,
    "cache": "compact",
    "lookahead": 32,
    "draft_threshold": 0.9,
    "end_threshold": OFF,
    "later_threshold": OFF,
    "max_lanes": 8,
    "min_fill": 0.7,
    "min_steps": 2,
    "boundary": "period",
    "stable_steps": 0,
    "siblings": "isolated",
    "child_length": BLOCK,
    "refine_lookahead": 32,
    "refresh_every": 1,
    "refresh_on": "lanes",
    "refresh_margin": 32,
    "reuse": True,
    "settle": LANE,
    "early_stop": BLOCK,
}

# By parameter: its sentence on a value that the paper does not give.
CHOSEN: Mapping[str, str] = {
    "threshold": 'is "the same as the baseline"; 0.9 is what Fast-dLLM published.',
    "block_length": "is not given; 32 is what Fast-dLLM published.",
    "lookahead": "(w) is not given; it is one block here.",
    "draft_threshold": "(tau_future) is not given; it is the threshold of lanes here.",
    "max_lanes": "has no equal in the paper, which names no bound; each lane more takes a slot of the server.",
    "min_fill": "(rho_min) is not given.",
    "min_steps": "(t_min) is not given.",
    "boundary": "is by task in the paper, so a request for code has to give `code`; the paper's test for full stops in"
    " numbers and its patterns of code without forks are not given.",
    "child_length": "is not given: a lane after a fork is a block long, or ends where the lane before the fork did"
    " (`rest`).",
    "refine_lookahead": "is called optional: a refine lane reads so many positions after it as they are, and writes no"
    " drafts there.",
    "refresh_every": '"periodically" in the paper: after each lane that has finished here.',
    "refresh_margin": '(m) is "small" in the paper; it is the look-ahead here.',
}
