"""The Python twin of the compiled core: the same names, file and results; slower, and easier to read.

Start with `recorder.py`. Every test of the recorder runs on both cores.
"""

from hotloop.measure.twin.call_counters import CallCounter, UpdateCounter
from hotloop.measure.twin.class_builder import class_builder
from hotloop.measure.twin.recorder import KIND, Recorder
from hotloop.measure.twin.region import Region
from hotloop.measure.twin.step_counter import StepCounter

__all__ = ["KIND", "CallCounter", "Recorder", "Region", "StepCounter", "UpdateCounter", "class_builder"]
