"""The corpus of tiny-chat: short conversations, made from grammars with many surface forms.

An answer follows from its conversation: where two answers would do, always the same one is learnt, because a model that
writes many tokens at once would mix them.
"""
