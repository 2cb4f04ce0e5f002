"""Eight devices, or two processes, learn what one device learns; run in child
processes, where a CPU can be several.
"""

import json
import socket
import subprocess
import sys

import numpy as np
import pytest

PROGRAM = """
import sys
sys.path[:0] = {path!r}
import jax
jax.config.update("jax_num_cpu_devices", {devices})
if {process} is not None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize("localhost:{port}", num_processes=2,
                               process_id={process})
import json
from pathlib import Path
from jax.sharding import AxisType
import small
from specdec_jax import train

mesh = None
if jax.device_count() > 1:
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
losses = []

def report(event):
    if isinstance(event, train.Trained):
        losses.append(event.loss)
    if isinstance(event, train.Evaluated):
        losses.append(event.tau)

recipe = small.recipe("eagle 3", data=train.Data(length=64, rows=8, held_out=8),
    evaluation=train.Evaluation(every=3, prompts=8, new_tokens=6))
fitted = small.fit(recipe, Path({folder!r}), mesh=mesh, report=report)
fusion = fitted.params["fusion"]["weight"]
print(json.dumps([losses, str(fusion.sharding.spec) if mesh else ""]))
"""


def start(folder, devices, *, process=None, port=0):
    path = [x for x in sys.path if x]
    program = PROGRAM.format(
        path=path, devices=devices, process=process, port=port, folder=str(folder)
    )
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    )


def said(child):
    out, _ = child.communicate(timeout=600)
    assert child.returncode == 0
    return json.loads(out.splitlines()[-1])


@pytest.mark.slow
def test_eight_devices_and_two_processes(tmp_path):
    expected, _ = said(start(tmp_path / "one", 1))
    found, spec = said(start(tmp_path / "eight", 8))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert "data" in spec  # really spread, not copied

    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    children = [
        start(tmp_path / "two", 1, process=process, port=port) for process in (0, 1)
    ]
    for child in children:
        found, spec = said(child)
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        assert "data" in spec
