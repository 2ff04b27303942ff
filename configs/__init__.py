"""Configs: ``base`` holds every default, the others import it and override fields.

A config of one's own does the same, in a file anywhere, given as ``--config=FILE.py``:

    from mempo_jax.configs import base

    def get_config():
        c = base.get_config()
        c.train.steps = 40
        return c
"""
