"""Flower's SuperExec of a SuperNode, whose ClientApps are copies of a process that has imported.

`flwr-vertical supernode` starts this file as a program: ``--isolation process`` of a SuperNode
leaves ClientApps to whoever asks for tasks. Flower's own SuperExec starts a new Python for each,
which imports Flower, pandas and SciPy for two seconds of a processor. Here a process that has
imported these, and nothing else, waits on a pipe and copies itself. It has no thread and no
connection, so a copy is clean. It has not imported this package either: an app brings its own.
"""

import gc
import json
import os
import signal
import sys
from dataclasses import asdict
from typing import IO, Any

import cryptography.x509
import grpc
import httpcore
import numpy as np
import pandas as pd
import scipy.linalg
import scipy.sparse
import scipy.special
from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode.runtime.run_clientapp import run_clientapp

NEEDED = (cryptography.x509, grpc, httpcore, pd, scipy.linalg, scipy.sparse, scipy.special)
"""What ClientApps would import."""


def serve(requests: IO[str]) -> None:
    """Copy this process for each request, until nobody can ask any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for copies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pipe's end is the end
    for line in requests:
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            run(json.loads(line))


def run(spec: dict[str, Any]) -> None:
    """Run a ClientApp, as `flwr-clientapp` does; it ends the process."""
    np.random.seed()  # noqa: NPY002 (copies would draw the same)
    certificates = validate_and_resolve_root_certificates(
        spec["root_certificates_path"], spec["insecure"]
    )
    run_clientapp(
        runtime_api_address=spec["runtime_api_address"],
        token=spec["token"],
        insecure=spec["insecure"],
        certificates=certificates,
        parent_pid=spec["parent_pid"],
    )
    sys.exit()


def main() -> None:
    """Start the process that is copied, then be Flower's SuperExec."""
    gc.freeze()  # copies need not look through what was imported
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(write)
        with os.fdopen(read) as requests:
            serve(requests)
        return
    os.close(read)
    asking = os.fdopen(write, "w")
    plain = SubprocessExecutor.launch

    def launch(executor: SubprocessExecutor, spec: ExecutionSpec) -> LaunchResult:
        if spec.task_type != TaskType.CLIENT_APP or spec.runtime_dependency_install:
            return plain(executor, spec)
        try:
            print(json.dumps(asdict(spec)), file=asking, flush=True)
        except BrokenPipeError:  # that process has died, for lack of memory perhaps
            return plain(executor, spec)
        return LaunchResult.accepted()

    SubprocessExecutor.launch = launch  # type: ignore[method-assign, assignment]
    flower_superexec()


if __name__ == "__main__":
    main()
