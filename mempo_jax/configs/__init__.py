"""The configs under the name that an installed package gives them.

A config file says ``from mempo_jax.configs import base`` wherever it is kept. A wheel
holds the files themselves here, in place of this module; see ``setup.py``. In a
checkout they are one folder, ``configs/``, and this module points there.
"""

import pathlib

__path__ = [str(pathlib.Path(__file__).parents[2] / "configs")]
