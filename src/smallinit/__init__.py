"""Small initialization for language models: the gamma rule, the models and the measurements."""
