"""Names of the op log match those of the op table."""

import pytest

from mempo_jax import types
from mempo_jax.memory import Op, OpError, OpKind, error_message


def test_every_kind_has_a_row_in_the_op_table():
    assert {kind.upper() for kind in OpKind} == set(types.Kind.__members__) - {"NONE"}


@pytest.mark.parametrize("error", list(OpError))
def test_every_error_has_a_short_message(error):
    op = Op(OpKind.MALFORMED, {"tag": "mem_write"}, "", (0, 1), error)
    message = error_message(error, op)
    assert 5 < len(message) < 80
    assert "{" not in message
