"""Our models in EleutherAI's lm-eval, so that any of its tasks runs on a trained run; and our own items as its tasks.

Read `adapter`, then `tasks`. lm-eval is imported by those two alone, because that takes seconds.
"""
