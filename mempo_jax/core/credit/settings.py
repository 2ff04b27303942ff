"""Which modes of credit, and their constants."""

from __future__ import annotations

import dataclasses

from mempo_jax.core.credit.modes import MODES

FORMS = ("bonus", "weight")
PROBES = ("turn_reward", "answer_log_prob")


@dataclasses.dataclass(frozen=True)
class CreditSettings:
    """Which modes, in the words of ``MODES``, and their constants.

    gamma in (0, 1] discounts per turn; other_weight in [0, 1] is what ``ops_only``
    leaves to tokens that spell no memory op. attribution_form "bonus" or "weight";
    attribution_floor in [0, 1] is the least weight of the second; attribution_probe
    "turn_reward" or "answer_log_prob" measures the change over an interval.
    attribution_weight, answer_probability_weight and counterfactual_weight scale the
    bonus of each; attribution_form "weight" has none, and wants attribution_weight = 1.
    counterfactual_evictions charges writes with what they crowded out. All bonuses fall
    linearly to 0 at step bonus_decay_steps; 0 leaves them as they are.
    """

    modes: tuple[str, ...]
    gamma: float
    other_weight: float
    attribution_form: str
    attribution_probe: str
    attribution_floor: float
    attribution_weight: float
    answer_probability_weight: float
    counterfactual_weight: float
    counterfactual_evictions: bool
    bonus_decay_steps: int

    def __post_init__(self) -> None:
        def check(ok: bool, field: str, expected: str) -> None:
            if not ok:
                got = getattr(self, field)
                raise ValueError(f"credit.{field}: expected {expected}, got {got!r}")

        known = set(self.modes) <= set(MODES)
        if not known or not self.modes or len(set(self.modes)) < len(self.modes):
            raise ValueError(
                f"credit.modes: expected one or more of {', '.join(MODES)}, each once; "
                f"got {list(self.modes)}"
            )
        check(0 < self.gamma <= 1, "gamma", "in (0, 1]")
        for field in ("other_weight", "attribution_floor"):
            check(0 <= getattr(self, field) <= 1, field, "0 to 1")
        for field in (
            "attribution_weight",
            "answer_probability_weight",
            "counterfactual_weight",
        ):
            ok = 0 <= getattr(self, field) < float("inf")
            check(ok, field, "at least 0 and finite")
        check(self.bonus_decay_steps >= 0, "bonus_decay_steps", "at least 0")
        check(self.attribution_form in FORMS, "attribution_form", f"one of {FORMS}")
        check(self.attribution_probe in PROBES, "attribution_probe", f"one of {PROBES}")
        ok = self.attribution_form == "bonus" or self.attribution_weight == 1
        expected = "1 with attribution_form 'weight', which has no bonus to scale"
        check(ok, "attribution_weight", expected)

    @property
    def needs(self) -> frozenset[str]:
        """What the modes want probed, in the words of ``types.NEEDS``."""
        return frozenset().union(*(MODES[mode].needs(self) for mode in self.modes))
