"""Runs the code of a documentation page, in a process of its own.

    python -m tests.docs_process

Reads one JSON object a line from its input and answers with one on its output. One
process serves all pages: importing and compiling are most of what their commands cost.
It sees one device, as a reader's CPU does, where the tests themselves see eight.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
from typing import Any


def main() -> None:
    """Answers requests until the input ends.

    A request has ``folder``, where it runs, and ``namespace``, a key; and either
    ``python`` (source) with ``name`` for tracebacks, or ``module`` (a launcher) with
    ``words``, ``env`` and ``input``. The answer has ``code``, ``out`` and ``err``.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    namespaces: dict[str, dict[str, Any]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["folder"] not in sys.path:
            sys.path.insert(0, request["folder"])
        namespace = namespaces.setdefault(
            request["namespace"], {"__name__": "__docs__"}
        )
        os.chdir(request["folder"])
        answers.write(json.dumps(_answer(request, namespace)) + "\n")
        answers.flush()


def _answer(request: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if "python" in request:
                source = compile(request["python"], request["name"], "exec")
                exec(source, namespace)
            else:
                _launch(request)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
        except BaseException:
            traceback.print_exc()
            code = 1
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def _launch(request: dict[str, Any]) -> None:
    """As ``python -m MODULE WORDS``: module, flags and all are fresh each time."""
    kept = dict(os.environ), sys.argv, sys.stdin
    os.environ.update(request["env"])
    sys.argv = [request["module"], *request["words"]]
    sys.stdin = io.StringIO(request["input"])
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    finally:
        environ, sys.argv, sys.stdin = kept
        os.environ.clear()
        os.environ.update(environ)


if __name__ == "__main__":
    main()
