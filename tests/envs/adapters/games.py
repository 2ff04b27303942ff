"""Small games that the tests of adapters share."""

from mempo_jax.envs.adapters import AdapterConfig
from mempo_jax.envs.tools import ToolConfig

TOOLS = ToolConfig(timeout_s=10.0, retries=1, deterministic=True)


def settings(**changes):
    values = {
        "id": "game",
        "options": (),
        "goal": "",
        "return_low": 0.0,
        "return_high": 1.0,
        "moves": (),
    }
    return AdapterConfig(**values | changes)


class Corridor:
    """A text game of Gymnasium's interface: a door's number is told once, at first."""

    def __init__(self, doors=3, as_dict=False):
        self.doors, self.as_dict = doors, as_dict

    def reset(self, *, seed=None, options=None):
        self.right, self.turn = seed % self.doors, 0
        return self._shown(f"the door is {self.right}"), {"goal": "open the door"}

    def step(self, action):
        if action == "break":
            raise ValueError("it broke")
        self.turn += 1
        opened = action == f"open {self.right}"
        shown = self._shown("you are through" if opened else "you walk on")
        return shown, 1.0 * opened, opened, self.turn >= 9, {}

    def _shown(self, text):
        return {"text": text, "turn": self.turn} if self.as_dict else text
