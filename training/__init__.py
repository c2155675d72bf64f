"""How the embedded models are made: corpus, tokenizer, training, export. Nothing of the server imports it."""
