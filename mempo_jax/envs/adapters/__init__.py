"""Games of other packages as environments; each package is an optional extra.

``gymnasium`` (any environment whose observations and actions are texts), ``textarena``
(games for one player, and those for two with an opponent here) and ``textworld``
(TextWorldExpress; needs Java). The packages are imported when a suite is made.
"""

from mempo_jax.envs.adapters.game import AdapterConfig, Game, GameEnv, GameMessage
from mempo_jax.envs.adapters.game_suite import ADAPTERS, AdapterSuite

__all__ = [
    "ADAPTERS",
    "AdapterConfig",
    "AdapterSuite",
    "Game",
    "GameEnv",
    "GameMessage",
]
