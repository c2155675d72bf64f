"""One line on each decoder: what it is. `asynclane decoders` prints it, and docs/decoding.md has the same words."""

from __future__ import annotations

from collections.abc import Mapping

SUMMARIES: Mapping[str, str] = {
    "asynclane": "lanes that fork at sentence ends and complete statements; compact cache with settling",
    "fast-dllm": "serial blocks, every position above a threshold",
    "fast-dllm-v2": "for block-causal models: a block's first token, then its sub-blocks in order",
    "llada": "serial blocks, an even quota of tokens a forward",
    "dream": "the canvas as one block; its timesteps give the number of tokens a forward",
    "adablock": "a block ends at the most confident delimiter that its first forward proposes",
    "ahd": "Fast-dLLM; positions of later blocks commit once they have been unchanged for long",
    "ass": "1, 2, 4, ... positions a forward, over the whole canvas or in blocks that grow",
    "bacd": "the threshold follows the block's confidence so far",
    "blockbatch": "one answer with several block sizes at once; branches exchange tokens, the first to end wins",
    "cad": "a threshold, at most four tokens a forward; end tokens wait in the first half",
    "ccd": "a quota; further tokens that were likely a forward ago and still are",
    "ce": "a threshold on a Kalman forecast of each position's confidence",
    "credit": "a token that is proposed repeatedly needs less confidence",
    "d2cache": "`llada` that computes only likely and recently changed positions",
    "d2f": "the next block is added once the last is 70 % full",
    "d3llm": "the next block is added once the last is 10 % full; positions of low entropy commit",
    "dkv": "`llada` whose decoded positions are cached one forward later",
    "dllm-cache": "`llada` whose prompt and response are recomputed at separate intervals",
    "dsb": "a block that slides: its end moves on by each position that commits",
    "entropy-bound": "serial blocks, positions of low entropy while their entropies add up to no more than a bound",
    "eoser": "a quota; end tokens weigh less at first",
    "ete": "explore, then exploit: where no position is certain, one uncertain position commits"
    " (our rule, after the abstract)",
    "freedave": "drafts its next steps and checks them in one forward; the answer equals one token a forward",
    "indel": "`llada2`, and control tokens insert and delete tokens of the block",
    "klass": "commits a token that is certain and has been the same for two forwards",
    "leap": "commits a token that stays the same when likely tokens are put beside it",
    "learn2pd": "a small trained filter decides; the canvas is cut after a predicted end",
    "llada2": "a threshold, and tokens of the block are edited as others change",
    "localleap": "near a certain position, less certainty is enough",
    "lopa": "several next steps are tried at once, the most confident continues",
    "prophet": "a quota; everything at once when the answer is certain",
    "s2d2": "for block-causal models: drafts a block, and checks the draft by the same model one token after the other",
    "saber": "commits above the mean confidence, and takes back the tokens that lost most",
    "slowfast": "slow forwards find the certain range, fast ones fill it",
    "tccf": "for block-causal models: coarse blocks until the thinking ends, fine ones after it, with `bacd`",
    "tspd": "a small recurrent controller decides",
    "wedlm": "for WeDLM: 16 positions from the first open one on; those of low entropy commit, near ones more easily",
    "window": "the first 16 masks, which see 64; everything every 32 forwards",
    "wino": "commits early, and takes back tokens that fail a second check",
}
