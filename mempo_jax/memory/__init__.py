"""External memory of a trajectory: tags to ops, ops to a bank of entries."""

from mempo_jax.memory.bank import Bank
from mempo_jax.memory.bank_config import BankConfig
from mempo_jax.memory.embedding import Embedder, make_embedder
from mempo_jax.memory.entry import (
    DeleteResult,
    Entry,
    Hit,
    MergeResult,
    PurgeResult,
    Reason,
    Status,
    Summary,
    WriteResult,
)
from mempo_jax.memory.hygiene import Hygiene
from mempo_jax.memory.lexical.comparison import Verdict
from mempo_jax.memory.ops import Op, OpError, OpKind, OpOutcome, OpRecord, error_message
from mempo_jax.memory.parser import BLOCK, Grammar, closing_tags, parse_ops
from mempo_jax.memory.persist import BankConflictError, BankFileError
from mempo_jax.memory.store import replay

__all__ = [
    "BLOCK",
    "Bank",
    "BankConfig",
    "BankConflictError",
    "BankFileError",
    "DeleteResult",
    "Embedder",
    "Entry",
    "Grammar",
    "Hit",
    "Hygiene",
    "MergeResult",
    "Op",
    "OpError",
    "OpKind",
    "OpOutcome",
    "OpRecord",
    "PurgeResult",
    "Reason",
    "Status",
    "Summary",
    "Verdict",
    "WriteResult",
    "closing_tags",
    "error_message",
    "make_embedder",
    "parse_ops",
    "replay",
]
