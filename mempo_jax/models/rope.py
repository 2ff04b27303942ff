"""Rotary scalings: how a model's rotary frequencies are stretched past its pretraining.

Each kind gives one multiplier per frequency and one factor on cosine and sine, so that
a decoder only has to know plain rotary positions. ``read`` turns the rotary fields of a
config.json into a scaling, ``written`` turns a scaling into those fields.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class LinearRope:
    """Divides all positions by ``factor``."""

    factor: float

    attention_factor = 1.0

    def multipliers(self, head_dim: int, theta: float) -> np.ndarray:
        """Returns the multiplier of each frequency, float64 [C/2].

        Args:
          head_dim: head size C.
          theta: base of the frequencies.
        """
        return np.full(head_dim // 2, 1 / self.factor)


@dataclasses.dataclass(frozen=True)
class Llama3Rope:
    """Divides the frequencies of long waves by ``factor``, as Llama 3.1 does.

    Attributes:
      factor: divisor of the lowest frequencies.
      low_freq_factor: waves that turn fewer times over the original positions are
        divided by ``factor``.
      high_freq_factor: waves that turn more often are unchanged; between both is a
        ramp.
      original_positions: the longest context of pretraining.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int

    attention_factor = 1.0

    def multipliers(self, head_dim: int, theta: float) -> np.ndarray:
        """Returns the multiplier of each frequency, float64 [C/2].

        Args:
          head_dim: head size C.
          theta: base of the frequencies.
        """
        turns = self.original_positions * _frequencies(head_dim, theta) / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        unchanged = np.clip((turns - self.low_freq_factor) / span, 0, 1)
        return (1 - unchanged) / self.factor + unchanged


@dataclasses.dataclass(frozen=True)
class YarnRope:
    """YaRN (Peng et al. 2023, arXiv:2309.00071, eq. 17 to 22).

    Attributes:
      factor: divisor of the lowest frequencies.
      original_positions: the longest context of pretraining.
      beta_fast: dimensions that turn more often over the original positions are
        unchanged.
      beta_slow: those that turn fewer times are divided by ``factor``; between both is
        a ramp.
      attention_factor: on cosine and sine.
      truncate: whether the ends of the ramp are rounded to whole dimensions.
    """

    factor: float
    original_positions: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    truncate: bool

    def multipliers(self, head_dim: int, theta: float) -> np.ndarray:
        """Returns the multiplier of each frequency, float64 [C/2].

        Args:
          head_dim: head size C.
          theta: base of the frequencies.
        """
        low, high = (
            head_dim
            * math.log(self.original_positions / (turns * 2 * math.pi))
            / (2 * math.log(theta))
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        high = high + 1e-3 if low == high else high  # a ramp of no width divides by 0
        stretched = np.clip((np.arange(head_dim // 2) - low) / (high - low), 0, 1)
        return stretched / self.factor + (1 - stretched)


@dataclasses.dataclass(frozen=True)
class FactorsRope:
    """Divides each frequency by a factor of its own, as GGUF files store them.

    Attributes:
      factors: divisors, one per frequency.
      attention_factor: on cosine and sine.
      original_positions: the longest context of pretraining.
    """

    factors: tuple[float, ...]
    attention_factor: float
    original_positions: int

    def multipliers(self, head_dim: int, theta: float) -> np.ndarray:
        """Returns the multiplier of each frequency, float64 [C/2].

        Args:
          head_dim: head size C.
          theta: base of the frequencies.
        """
        if len(self.factors) != head_dim // 2:
            raise ValueError(
                f"expected {head_dim // 2} rotary factors for heads of {head_dim}, got "
                f"{len(self.factors)}: correct the model's config"
            )
        return 1 / np.asarray(self.factors, np.float64)


RopeScaling = LinearRope | Llama3Rope | YarnRope | FactorsRope

# The values of rope_type that are supported, and the fields that each may have.
KINDS = ("default", "linear", "llama3", "yarn", "longrope")
_LENGTH = "original_max_position_embeddings"
_FIELDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _LENGTH),
    "yarn": (
        *("factor", _LENGTH, "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": ("short_factor", "long_factor", "factor", "attention_factor", _LENGTH),
}
_ALWAYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


def read(fields: Mapping[str, Any], max_positions: int) -> RopeScaling | None:
    """Reads a scaling from the rotary fields of a config.json.

    Args:
      fields: ``rope_scaling`` and ``rope_parameters`` in one mapping.
      max_positions: the original length if the fields name none.

    Returns:
      The scaling; None for plain rotary positions.

    Raises:
      ValueError: a kind or a field that would give other positions; it names them.
    """
    kind = fields.get("rope_type") or fields.get("type") or "default"
    if kind not in KINDS:
        raise ValueError(f"rope_type {kind!r} is not one of {', '.join(KINDS)}")
    known = (*_FIELDS[kind], *_ALWAYS)
    if unknown := [n for n, v in fields.items() if n not in known and v is not None]:
        raise ValueError(f"rope_type {kind!r} with {', '.join(unknown)}")
    if (share := fields.get("partial_rotary_factor", 1.0)) not in (None, 1.0):
        raise ValueError(f"partial_rotary_factor {share}")
    present = {n: v for n, v in fields.items() if v is not None}
    present.setdefault(_LENGTH, max_positions)
    try:
        return _READERS[kind](present)
    except KeyError as error:
        raise ValueError(f"rope_type {kind!r} without {error.args[0]}") from error
    except (TypeError, ZeroDivisionError) as error:
        raise ValueError(f"rope_type {kind!r}: {error}") from error


def written(scaling: RopeScaling | None) -> dict[str, Any]:
    """Builds the rotary fields of a config.json, without ``rope_theta``.

    Args:
      scaling: as ``read`` returns it; None for plain rotary positions.
    """
    match scaling:
        case None:
            return {"rope_type": "default"}
        case LinearRope():
            return {"rope_type": "linear", "factor": scaling.factor}
        case FactorsRope():
            # longrope is the only type with a factor per frequency; if short and long
            # factors are equal, its length makes no difference.
            return {
                "rope_type": "longrope",
                "short_factor": list(scaling.factors),
                "long_factor": list(scaling.factors),
                "factor": 1.0,
                "attention_factor": scaling.attention_factor,
                _LENGTH: scaling.original_positions,
            }
        case _:
            fields = dataclasses.asdict(scaling)
            length = fields.pop("original_positions")
            kind = "yarn" if isinstance(scaling, YarnRope) else "llama3"
            return {"rope_type": kind, **fields, _LENGTH: length}


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """Computes the factor on cosine and sine that YaRN recommends (eq. 22).

    Args:
      factor: how far positions are stretched; 1 or less needs no correction.
      mscale: strength of the correction; 1 in the paper.
    """
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _llama3(f: Mapping[str, Any]) -> Llama3Rope:
    low, high = float(f["low_freq_factor"]), float(f["high_freq_factor"])
    if not low < high:
        raise ValueError(f"low_freq_factor {low} is not below high_freq_factor {high}")
    return Llama3Rope(_factor(f), low, high, int(f[_LENGTH]))


def _yarn(f: Mapping[str, Any]) -> YarnRope:
    factor = _factor(f)
    strength = f.get("attention_factor")
    if strength is None:
        strength = yarn_attention_factor(factor)
        if f.get("mscale") and f.get("mscale_all_dim"):
            strength = yarn_attention_factor(factor, f["mscale"])
            strength /= yarn_attention_factor(factor, f["mscale_all_dim"])
    return YarnRope(
        factor=factor,
        original_positions=int(f[_LENGTH]),
        beta_fast=float(f.get("beta_fast") or 32),  # 32 and 1: the paper's values
        beta_slow=float(f.get("beta_slow") or 1),
        attention_factor=float(strength),
        truncate=bool(f.get("truncate", True)),
    )


def _longrope(f: Mapping[str, Any]) -> FactorsRope:
    short, long = list(f["short_factor"]), list(f["long_factor"])
    if short != long:
        raise ValueError(
            "rope_type 'longrope' with a long_factor other than its short_factor"
        )
    # Its default strength depends on the length reached, so the file must state one.
    return FactorsRope(
        tuple(map(float, short)), float(f["attention_factor"]), int(f[_LENGTH])
    )


def _factor(f: Mapping[str, Any]) -> float:
    factor = float(f["factor"])
    if not 0 < factor < math.inf:
        raise ValueError(f"factor {factor}")
    return factor


def _frequencies(head_dim: int, theta: float) -> np.ndarray:
    return theta ** -(np.arange(0, head_dim, 2) / head_dim)


_READERS = {
    "default": lambda f: None,
    "linear": lambda f: LinearRope(_factor(f)),
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
