"""Classes whose methods are recorded stay what they are for Ray: their methods are found, and can be sent."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from types import ModuleType

from hotloop.instrument import ray
from hotloop.instrument.patch import Patches
from hotloop.measure.profiler import default


def test_methods_in_a_region_are_methods_of_an_actor() -> None:
    """They were left out: `actor.close.remote()` of PufferLib's vector envs raised AttributeError."""
    module = ModuleType("inspect_util")
    vars(module)["is_function_or_method"] = inspect.isfunction
    into = Patches()
    ray.patch_inspection(module, into)
    wrapped = default.profile("close").wrap(test_methods_in_a_region_are_methods_of_an_actor)
    assert module.is_function_or_method(wrapped) and not module.is_function_or_method(3)
    into.undo()
    assert module.is_function_or_method is inspect.isfunction


SENDS = """
import sys
import cloudpickle
from hotloop.instrument import ray
from hotloop.instrument.patch import Patches
from hotloop.measure.profiler import default
ray.patch_pickling(cloudpickle.cloudpickle, Patches())
class Env:
    def reset(self):
        return 7
Env.reset = default.profile("Env.reset").wrap(Env.reset)
mine, Env = Env, None  # as a decorated class, which Ray replaces
sys.stdout.buffer.write(cloudpickle.dumps(mine))
"""


def test_classes_of_the_script_are_sent_by_value() -> None:
    """An env of Gymnasium that the script made an actor of could not be sent: PicklingError."""
    sent = subprocess.run([sys.executable, "-c", SENDS], capture_output=True, check=False)
    assert not sent.returncode, sent.stderr.decode()
    assert pickle.loads(sent.stdout)().reset() == 7
