"""The shape of a run's policy, read without its weights."""

from __future__ import annotations

import pathlib

from mempo_jax.models import gguf_file, hf
from mempo_jax.models.families import read_config
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.settings import ConfigError, nearest
from mempo_jax.training import parts
from mempo_jax.training.run_settings import RunSettings

# vocabulary, width, layers, heads, key heads, head size, MLP width, tied, positions
_SIZES = {
    "SmolLM2-135M": (49_152, 576, 30, 9, 3, 64, 1_536, True, 8_192),
    "SmolLM2-360M": (49_152, 960, 32, 15, 5, 64, 2_560, True, 8_192),
    "SmolLM2-1.7B": (49_152, 2_048, 24, 32, 32, 64, 8_192, True, 8_192),
    "Qwen2.5-0.5B": (151_936, 896, 24, 14, 2, 64, 4_864, True, 32_768),
    "Qwen2.5-1.5B": (151_936, 1_536, 28, 12, 2, 128, 8_960, True, 32_768),
    "Qwen2.5-3B": (151_936, 2_048, 36, 16, 2, 128, 11_008, True, 32_768),
    "Qwen2.5-7B": (152_064, 3_584, 28, 28, 4, 128, 18_944, False, 32_768),
    "Qwen2.5-14B": (152_064, 5_120, 48, 40, 8, 128, 13_824, False, 32_768),
    "Qwen2.5-32B": (152_064, 5_120, 64, 40, 8, 128, 27_648, False, 32_768),
    "Qwen3-0.6B": (151_936, 1_024, 28, 16, 8, 128, 3_072, True, 40_960),
    "Qwen3-1.7B": (151_936, 2_048, 28, 16, 8, 128, 6_144, True, 40_960),
    "Qwen3-4B": (151_936, 2_560, 36, 32, 8, 128, 9_728, True, 40_960),
    "Qwen3-8B": (151_936, 4_096, 36, 32, 8, 128, 12_288, False, 40_960),
}
_SUFFIXES = ("-Instruct",)


def policy_shape(settings: RunSettings) -> tuple[DecoderConfig, str]:
    """The decoder's shape, and where it was found.

    From a directory's config.json or a GGUF file's header. Where ``policy.path`` names
    a directory that is not there, from a table of known sizes by its last part.

    Raises:
      ConfigError: nothing there and no such size, or a file that does not fit.
    """
    spelled = settings.policy.path
    if not spelled:
        suite = parts.make_suite(settings)
        return parts.make_nano(suite, settings).config, "the built-in nano"
    return shape_of(spelled, "policy.path")


def shape_of(spelled: str, field: str) -> tuple[DecoderConfig, str]:
    """The same for one path, that of ``config.field``."""
    try:
        path = hf.resolve(spelled)
        if path.suffix == ".gguf":
            with gguf_file.open_gguf(path) as file:
                return file.config, f"{spelled}, its header"
        if (path / "config.json").is_file():
            return read_config(path), f"{spelled}/config.json"
    except (ValueError, OSError) as error:
        raise ConfigError(f"config.{field} = {spelled!r}: {error}") from error
    name = pathlib.PurePath(spelled).name
    known = known_shape(name)
    if known is None:
        near = nearest(name, list(_SIZES))
        hint = f"; the nearest of these is {near}" if near else ""
        raise ConfigError(
            f"config.{field} = {spelled!r}: no config.json there, and {name!r} is none "
            f"of the known sizes ({', '.join(_SIZES)}){hint}"
        )
    return known, f"no {spelled} here: the known shape of {name}"


def known_shape(name: str) -> DecoderConfig | None:
    """The published shape of a model by its name, with or without "-Instruct"."""
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    if name not in _SIZES:
        return None
    *sizes, tied, positions = _SIZES[name]
    return DecoderConfig(
        *sizes,
        rope_theta=1e6,  # changes no shape, like the norm's epsilon
        norm_eps=1e-6,
        tied=tied,
        qkv_bias=name.startswith("Qwen2.5"),
        qk_norm=name.startswith("Qwen3"),
        max_positions=positions,
    )
